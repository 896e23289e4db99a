// What a viewer may do with a service.
import { useState } from "preact/hooks";
import { asProblem, del, path, post } from "../api";
import { t } from "../i18n";
import { may } from "../me";
import { go } from "../router";
import type { PortLink, Problem, Service } from "../types";
import { askBefore, Dialog } from "../ui/dialog";
import { ProblemBox } from "../ui/parts";
import { complain, say } from "../ui/toast";

export function servicePath(service: Pick<Service, "name" | "tenant_id">, order = ""): string {
  return path(`/api/v1/services/${encodeURIComponent(service.name)}${order}`, { tenant_id: service.tenant_id });
}

export function ServiceOrders({ service, refresh }: { service: Service; refresh: () => void }) {
  const [scaling, setScaling] = useState(false);
  const name = service.name;
  const open = () => void post<PortLink>(servicePath(service, "/links")).then((link) => window.open(link.url, "_blank", "noopener"), complain);
  const done = (text: string) => {
    say(text);
    refresh();
  };
  const restart = () =>
    askBefore({
      title: t("services.restartAsk", { name }),
      text: t("services.restartWhat"),
      action: t("services.restartDo", { name }),
      run: async () => {
        await post(servicePath(service, "/restart"));
        done(t("services.restarted", { name }));
      },
    });
  const rollBack = () =>
    askBefore({
      title: t("services.rollbackAsk", { name, n: service.previous_generation ?? 0 }),
      text: t("services.rollbackWhat", { now: service.generation }),
      action: t("services.rollbackDo", { n: service.previous_generation ?? 0 }),
      run: async () => {
        await post(servicePath(service, "/rollback"));
        done(t("services.rolledBack", { name }));
      },
    });
  const remove = () =>
    askBefore({
      title: t("services.deleteAsk", { name }),
      text: t("services.deleteWhat", { n: service.replicas.length }),
      action: t("services.deleteDo", { name }),
      danger: true,
      run: async () => {
        await del(servicePath(service));
        say(t("services.deleted", { name }));
        go("/services");
      },
    });
  return (
    <span class="row orders">
      {service.url && may("task.enter") ? (
        <button type="button" onClick={open} disabled={!service.ready} data-testid="service-open">
          {t("services.open")}
        </button>
      ) : null}
      {may("task.change") ? (
        <>
          <button type="button" onClick={() => setScaling(true)} data-testid="service-scale">
            {t("services.scale")}
          </button>
          <button type="button" onClick={restart} data-testid="service-restart">
            {t("services.restart")}
          </button>
          {service.previous_generation === null ? null : (
            <button type="button" onClick={rollBack} data-testid="service-rollback">
              {t("services.rollback")}
            </button>
          )}
          <button type="button" class="danger" onClick={remove} data-testid="service-delete">
            {t("services.delete")}
          </button>
        </>
      ) : null}
      {scaling ? <ScaleDialog service={service} close={() => setScaling(false)} done={done} /> : null}
    </span>
  );
}

function ScaleDialog({ service, close, done }: { service: Service; close: () => void; done: (text: string) => void }) {
  const [form, setForm] = useState({ low: service.min_replicas, high: service.max_replicas });
  const [problem, setProblem] = useState<Problem | null>(null);
  const [busy, setBusy] = useState(false);
  const fits = form.low >= 0 && form.high >= form.low && Number.isInteger(form.low) && Number.isInteger(form.high);
  const send = (event: Event) => {
    event.preventDefault();
    setBusy(true);
    post<Service>(servicePath(service, "/scale"), { min_replicas: form.low, max_replicas: form.high })
      .then(() => {
        close();
        done(t("services.scaled", { name: service.name }));
      })
      .catch((error: unknown) => setProblem(asProblem(error)))
      .finally(() => setBusy(false));
  };
  const title = t("services.scaleAsk", { name: service.name });
  const field = (id: "low" | "high", label: string) => (
    <div class="field">
      <label for={`scale-${id}`}>{label}</label>
      <input id={`scale-${id}`} type="number" min={0} max={256} required value={form[id]} onInput={(event) => setForm({ ...form, [id]: event.currentTarget.valueAsNumber })} data-testid={`scale-${id}`} />
    </div>
  );
  return (
    <Dialog label={title} onClose={close} testid="scale-dialog">
      <form onSubmit={send}>
        <h2>{title}</h2>
        <p>{t("services.scaleWhat", { n: service.requests_per_replica })}</p>
        {field("low", t("services.min"))}
        {field("high", t("services.max"))}
        {problem ? <ProblemBox problem={problem} /> : null}
        <footer>
          <button type="button" onClick={close}>
            {t("common.cancel")}
          </button>
          <button type="submit" class="primary" disabled={busy || !fits} data-testid="scale-send">
            {t("services.scaleDo")}
          </button>
        </footer>
      </form>
    </Dialog>
  );
}
