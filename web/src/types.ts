// Names of the pages for the shapes of the server's answers. The shapes are made from src/dgpu/wire (web/wire_types.py);
// only what a page knows better than the wire is written here.
import type * as wire from "../build/wire";

export type {
  AlertAnswer as Alert,
  ArrayAnswer as ArrayProgress,
  AlertList,
  AuditAnswer as AuditEntry,
  AuditPage,
  Attempt,
  Bar as WireBar,
  BoardHistory,
  BoardPoint,
  BoardSnapshot as Board,
  Cancelled,
  Changed,
  ExpectedStart,
  FileEntry,
  FileList,
  GpuAnswer as Gpu,
  GpuList,
  NodeAnswer as Node,
  NodeEvent,
  NodeHealth,
  NodeHistory,
  NewToken,
  NodeList,
  OutputAnswer as OutputPlace,
  PortLink,
  QuotaEffect,
  QueueEntry,
  QueuePage,
  MemberAnswer as EngineMember,
  ReservationAnswer as Reservation,
  Retried,
  SchedulerAnswer as Scheduler,
  SchedulerList,
  SecretAnswer as Secret,
  SecretList,
  ServiceAnswer as Service,
  ServiceList,
  SilenceAnswer as Silence,
  SilenceList,
  SignInAddress,
  SignInMethods,
  Submitted,
  TaskAnswer as Task,
  TaskEvent,
  TaskEvents,
  TaskPage,
  TenantAnswer as Tenant,
  TenantList,
  TestedTargets,
  Timeline,
  TokenAnswer as Token,
  TokenList,
  Usage,
  WhoAmI,
  WorkerList,
  WorkerRow as Worker,
} from "../build/wire";

export type TaskStatus = wire.TaskAnswer["status"];

/** Pages make problems of their own, too: those have only what is shown. */
export type Problem = Pick<wire.Problem, "status" | "title" | "detail" | "code"> & Partial<wire.Problem>;

/** Further fields are the numbers of its code. */
export interface Blocker extends Record<string, unknown> {
  code: string;
  detail: string;
}

type WithBlockers<T> = Omit<T, "blockers"> & { blockers: Blocker[] };

export type Why = WithBlockers<wire.Why>;
export type Whatif = Omit<wire.WhatifAnswer, "waits"> & { waits: WithBlockers<wire.WhatifWait>[] };

/** Counts that did not change are missing. */
export type Delta = Omit<wire.BoardDelta, "counts"> & { counts?: Partial<wire.BoardCounts> };
