"""Every key of scheduler.yaml and agent.yaml, with its default. Durations are in seconds unless named otherwise."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from dgpu.agent.probe.detect import DetectionMethod
from dgpu.agent.probe.models import SimulatedCards
from dgpu.entry.alert_types import Alerts, Notify
from dgpu.entry.config_section import Name, Section
from dgpu.entry.ha_types import Ha

_YEAR = 31_536_000.0
_Seconds = Annotated[float, msgspec.Meta(gt=0, le=_YEAR)]
_SecondsOrNone = Annotated[float, msgspec.Meta(ge=0, le=_YEAR)]  # 0: no limit
_Positive = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_NotNegative = Annotated[int, msgspec.Meta(ge=0, le=1_000_000_000)]
_Fraction = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Factor = Annotated[float, msgspec.Meta(ge=0.001, le=1_000)]
_Host = Annotated[str, msgspec.Meta(max_length=253, pattern=r"^[A-Za-z0-9._:%\[\]-]*$")]
_Nodes = Annotated[int, msgspec.Meta(ge=1, le=10_000)]


class Retention(Section, frozen=True, kw_only=True):
    """The limit reached first applies."""

    days: Annotated[float, msgspec.Meta(gt=0, le=36_500)] = 30
    gib: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 10


class Logging(Section, frozen=True, kw_only=True):
    level: Literal["debug", "info", "warning", "error"] = "info"
    format: Literal["text", "json"] = "text"
    output: str = "stderr"  # stderr, stdout or a file


class Server(Section, frozen=True, kw_only=True):
    grpc_address: str = "127.0.0.1:9090"
    grpc_tls: bool = False  # needs `dgpu ca init`
    join_address: str = ""  # where new machines exchange their token; empty: the port after grpc_address
    certificate_seconds: Annotated[int, msgspec.Meta(ge=60, le=31_536_000)] = 2_592_000
    http_address: str = "127.0.0.1:8080"  # ":8080" means every interface
    http_tls: Literal["none", "ca", "files"] = "none"  # ca: of `dgpu ca init`
    http_certificate_file: str = ""  # PEM, with the chain
    http_key_file: str = ""
    proxy_address: str = ""  # for ports of tasks; empty: 127.0.0.1, the port after http_address; off: none
    proxy_url: str = ""  # of the proxy for browsers, like https://*.apps.example.org
    allowed_hosts: tuple[str, ...] = ()  # names allowed in a request's Host in addition to the local ones


class Estimates(Section, frozen=True, kw_only=True):
    """(base of the model + MB per atom x atoms) x factor of the task type."""

    default_base_mb: _NotNegative = 4000
    mb_per_atom: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 2
    default_atoms: _NotNegative = 500
    factors: dict[str, _Factor] = msgspec.field(
        default_factory=lambda: {
            "optimization": 1.2,
            "stability": 1.5,
            "heat-capacity": 2.0,
            "bulk-modulus": 1.3,
        }
    )
    models: dict[str, _NotNegative] = msgspec.field(default_factory=dict)  # base by model


class Sharing(Section, frozen=True, kw_only=True):
    enforce: Literal["report", "kill"] = "report"  # reaction to a task that uses more memory than it reserved


class SchedulerRules(Section, frozen=True, kw_only=True):
    role: Literal["master", "standby"] = "master"
    schedule_interval: _Seconds = 5
    snapshot_interval: _Seconds = 30
    placement: Literal["balanced", "pack"] = "balanced"
    memory_safety_margin_mb: _NotNegative = 2000
    memory_ramp_up_seconds: _SecondsOrNone = 60  # a shorter run does not lower an estimate
    estimates: Estimates = Estimates()
    max_models_per_gpu: _Positive = 2
    model_cache_ttl_seconds: _Seconds = 3600
    default_task_timeout_seconds: _SecondsOrNone = 3600  # batch; online has none
    max_task_timeout_seconds: _SecondsOrNone = 86400
    max_grace_seconds: _Seconds = (
        300  # from TERM to KILL, of a task that requests more than the node's setting
    )
    worker_heartbeat_interval_seconds: _Seconds = 10
    worker_heartbeat_timeout_seconds: _Seconds = 30
    retry_delay_seconds: _Seconds = 1  # doubles per retry
    max_retry_delay_seconds: _Seconds = 60
    max_waiting_tasks: _Positive = 1_000_000  # bounds memory; beyond it submits are refused
    ageing_minutes_per_point: Annotated[int, msgspec.Meta(ge=0, le=525_600)] = 0  # 0: priority alone decides
    keep_finished_tasks: _NotNegative = 10_000  # in memory; older tasks are in the history
    keep_finished_seconds: _Seconds = 3600
    max_unsaved_tasks: _Positive = 250_000  # further finished tasks, while the history does not advance
    max_idempotency_keys: _Positive = 1_000_000  # all tenants; about 170 bytes each, in two processes
    max_idempotency_keys_per_tenant: _Positive = 500_000


class Backfill(Section, frozen=True, kw_only=True):
    reservations: Annotated[int, msgspec.Meta(ge=0, le=64)] = 8  # 0: any task that fits may start first


class Quota(Section, frozen=True, kw_only=True):
    online_percent: _Fraction = 0.7
    batch_percent: _Fraction = 0.3
    mode: Literal["strict", "borrow"] = "strict"
    reclaim: Literal["wait", "stop"] = "wait"
    unknown_tenants: Literal["refuse", "create"] = "refuse"  # applies once any tenant exists
    fair_share_half_life_hours: Annotated[float, msgspec.Meta(ge=0.02, le=8760)] = 24


class HealthSection(Section, frozen=True, kw_only=True):
    """When a GPU leaves service, and how it returns."""

    cool_down_seconds: _Seconds = 30
    give_up_seconds: _Seconds = 3600
    check_timeout_seconds: _Seconds = 120
    parole_runs: _Positive = 3
    parole_seconds: _Seconds = 600
    failures_in_a_row: _NotNegative = 3  # 0: failures of tasks never count as a fault
    max_quarantines: _NotNegative = 3
    quarantine_window_seconds: _Seconds = 86400


class AgentRules(Section, frozen=True, kw_only=True):
    heartbeat_timeout: _Seconds = 15
    task_lease_seconds: _Seconds = 60
    lease_action: Literal["freeze", "stop", "never"] = "freeze"


class WorkerSection(Section, frozen=True, kw_only=True):
    """Workers of function calls."""

    idle_seconds: _Seconds = 600
    turn_seconds: _Seconds = 600
    result_ttl_seconds: _Seconds = 86_400
    result_mb: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1024


class AuditRetention(Section, frozen=True, kw_only=True):
    days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 365
    entries: Annotated[int, msgspec.Meta(ge=1_000, le=100_000_000)] = 1_000_000  # of each kind


class Storage(Section, frozen=True, kw_only=True):
    snapshot_dir: str = "/var/lib/dgpu-scheduler/state"
    journal: Literal["file", "etcd"] = "file"
    segment_mb: Annotated[int, msgspec.Meta(ge=1, le=4096)] = 32
    journal_retention: Retention = Retention()
    log_retention: Retention = Retention()
    # The first and the last bytes of each attempt are stored.
    log_head_bytes: Annotated[int, msgspec.Meta(ge=0, le=64 << 20)] = 1 << 20
    log_tail_bytes: Annotated[int, msgspec.Meta(ge=64 << 10, le=256 << 20)] = 16 << 20
    # Archives of projects: the age after their last use, and the size of all of them.
    upload_retention: Retention = Retention(days=7, gib=20)
    upload_tenant_gib: Annotated[float, msgspec.Meta(gt=0, le=1_000_000)] = 10
    upload_max_mb: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 1024
    telemetry_retention: Retention = Retention(days=91, gib=2)
    audit_retention: AuditRetention = AuditRetention()


class Oidc(Section, frozen=True, kw_only=True):
    """Sign-in with accounts of an identity provider."""

    issuer: str = ""  # https://id.example.org/realms/lab; empty: none
    client_id: str = ""
    client_secret_file: str = ""  # empty: a public client
    audience: str = ""  # of tokens on the API; empty: client_id
    cli_client_id: str = ""  # a public client, for dgpu login --oidc; empty: client_id, if that has no secret
    name: str = ""  # for the button of the login page; empty: the host of the issuer
    redirect_url: str = ""  # empty: /login at the first of server.allowed_hosts, else at server.http_address
    scopes: tuple[str, ...] = ("openid", "profile", "email")
    algorithms: tuple[str, ...] = ("RS256", "ES256")
    user_claim: str = "preferred_username"
    tenants_claim: str = "groups"
    tenants: dict[str, str] = msgspec.field(
        default_factory=dict
    )  # of a value of tenants_claim; empty: its values are tenants
    role_claim: str = "groups"
    roles: dict[str, Literal["admin", "operator", "tenant-admin", "user", "viewer"]] = msgspec.field(
        default_factory=dict
    )
    default_role: Literal["", "tenant-admin", "user", "viewer"] = "user"  # empty: a role of `roles` is needed
    clock_skew_seconds: Annotated[int, msgspec.Meta(ge=0, le=600)] = 60
    session_seconds: Annotated[int, msgspec.Meta(ge=60, le=604_800)] = 28_800
    ca_file: str = ""  # PEM; empty: the authorities of the machine


class Auth(Section, frozen=True, kw_only=True):
    mode: Literal["local", "none", "token"] = "local"
    requests_per_second: Annotated[float, msgspec.Meta(ge=0, le=1_000_000)] = 0  # 0: no limit
    oidc: Oidc = Oidc()


class IsolationSection(Section, frozen=True, kw_only=True):
    # none, a map from tenants to Unix users, or a range of uids; empty: not set
    users: str | dict[str, str] = ""


class Redis(Section, frozen=True, kw_only=True):
    """A read-only picture of the queue for other programs."""

    url: str = ""  # redis://[user:password@]host[:port][/database], rediss:// for TLS; empty: none
    prefix: Annotated[str, msgspec.Meta(max_length=64)] = ""  # of all keys


class Integrations(Section, frozen=True, kw_only=True):
    redis: Redis = Redis()


class SchedulerConfig(Section, frozen=True, kw_only=True):
    server: Server = Server()
    scheduler: SchedulerRules = SchedulerRules()
    ha: Ha = Ha()
    quota: Quota = Quota()
    backfill: Backfill = Backfill()
    sharing: Sharing = Sharing()
    agent: AgentRules = AgentRules()
    health: HealthSection = HealthSection()
    worker: WorkerSection = WorkerSection()
    storage: Storage = Storage()
    tenants: tuple[dict[str, object], ...] = ()
    auth: Auth = Auth()
    isolation: IsolationSection = IsolationSection()
    alerts: Alerts = Alerts()
    notify: Notify = Notify()
    integrations: Integrations = Integrations()
    logging: Logging = Logging()


class AgentNode(Section, frozen=True, kw_only=True):
    id: Name = ""  # empty: the host name
    address: _Host = ""  # address for other nodes; empty: the host name
    heartbeat_interval: _Seconds = 5
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    simulated_nodes: _Nodes = 1  # with simulated GPUs: nodes in this process
    witness: bool = False  # run the third member of a highly available cluster; needs `dgpu ha join`


class AgentTls(Section, frozen=True, kw_only=True):
    dir: str = ""  # of the certificate; empty: `tls` in executor.work_dir
    renew_before_seconds: _SecondsOrNone = 0  # before expiry; 0: a third of the lifetime


class AgentScheduler(Section, frozen=True, kw_only=True):
    master_address: str = "127.0.0.1:9090"
    standby_address: str = ""
    retry_interval: _Seconds = 1
    max_retry_interval: _Seconds = 30
    tls: AgentTls = AgentTls()  # used once the machine has joined


class AgentGpu(Section, frozen=True, kw_only=True):
    detection_method: DetectionMethod = DetectionMethod.AUTO
    simulated: (
        str | tuple[SimulatedCards, ...]
    ) = ()  # a list of {model, count, memory_mb}, or a text like 4xV100
    gpu_ids: tuple[int | str, ...] = ()  # indexes or UUIDs; empty: all
    reserved_gpu_ids: tuple[int | str, ...] = ()  # shown, never used
    health_check_interval: _Seconds = 30
    max_temperature_c: Annotated[int, msgspec.Meta(ge=0, le=200)] = 0  # 0: the GPU's own limit
    check_command: str = ""  # for the shell; empty: memory is written and read back


class Docker(Section, frozen=True, kw_only=True):
    socket: str = "/var/run/docker.sock"
    default_image: str = ""  # for tasks without one; empty: they run as processes
    allowed_mounts: tuple[str, ...] = ()  # directories that tasks may mount; with :ro, read-only
    user: str = ""  # UID:GID; empty: the agent's own, or nobody's if that is root
    gpu_method: Literal["gpus", "cdi"] = "gpus"
    network: str = ""  # empty: the engine's default
    pids_limit: Annotated[int, msgspec.Meta(ge=1, le=4_194_304)] = 4_096
    shm_mb: Annotated[int, msgspec.Meta(ge=1, le=1_048_576)] = 1_024  # of tasks that do not say
    pull: Literal["missing", "always", "never"] = "missing"
    auth_file: str = ""  # credentials for registries, like ~/.docker/config.json


class WorkdirRetention(Section, frozen=True, kw_only=True):
    """Retention of the directories that dgpu created for tasks. The oldest is deleted first; 0: no limit."""

    days: Annotated[float, msgspec.Meta(ge=0, le=3_650)] = 7
    gib: Annotated[float, msgspec.Meta(ge=0, le=1_048_576)] = 50  # all together


class Executor(Section, frozen=True, kw_only=True):
    execution_method: Literal["process", "docker", "simulated"] = "process"  # simulated: tasks run nothing
    work_dir: str = "/var/lib/dgpu-agent/tasks"
    tasks_dir: str = ""  # of the directories of tasks; empty: `tasks` in work_dir
    stop_grace_seconds: _Seconds = 10  # between SIGTERM and SIGKILL
    # Output kept on the node per attempt. The second is the older name, 0 if not set.
    output_max_bytes: Annotated[int, msgspec.Meta(ge=1 << 20, le=1 << 40)] = 1 << 30
    max_output_mb: Annotated[int, msgspec.Meta(ge=0, le=1_048_576)] = 0
    output_retention: Retention = Retention(days=7, gib=20)  # of ended attempts
    docker: Docker = Docker()
    workdir_retention: WorkdirRetention = WorkdirRetention()


class AgentIsolation(Section, frozen=True, kw_only=True):
    """Limits of this node for tasks that run as other Unix users (isolation.users of the scheduler)."""

    min_uid: Annotated[int, msgspec.Meta(ge=1, le=4_294_967_294)] = 1_000  # no task runs as a user below it
    groups: Annotated[
        tuple[Name, ...], msgspec.Meta(max_length=64)
    ] = ()  # supplementary groups of every task
    max_processes: _NotNegative = 16_384  # processes and threads of one user; 0: no limit


class AgentConfig(Section, frozen=True, kw_only=True):
    agent: AgentNode = AgentNode()
    scheduler: AgentScheduler = AgentScheduler()
    gpu: AgentGpu = AgentGpu()
    executor: Executor = Executor()
    isolation: AgentIsolation = AgentIsolation()
    logging: Logging = Logging()
