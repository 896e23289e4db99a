// Services: equal tasks behind one address, and how far they are.
import { get } from "../api";
import { number } from "../format";
import { stepText, t } from "../i18n";
import { go, route } from "../router";
import { ServiceOrders, servicePath } from "../services/orders";
import type { Service, ServiceList } from "../types";
import { useAsked } from "../ui/asked";
import { List, type Column } from "../ui/list";
import { Facts, nodeAddress, Page, ProblemBox, Skeleton, State, TaskLink, Time } from "../ui/parts";
import { TenantNames } from "../ui/tenants";

const EVERY_MS = 3_000;

function addressOf(service: Service): string {
  return `/services/${encodeURIComponent(service.name)}?tenant=${encodeURIComponent(service.tenant_id)}`;
}

export function Services() {
  const asked = useAsked<ServiceList>("services", (signal) => get("/api/v1/services", {}, signal), EVERY_MS);
  return (
    <Page title={t("services.title")} testid="services">
      <p class="muted page-note">{t("services.what")}</p>
      <List
        asked={asked}
        rowsOf={(data) => data.services}
        columns={columns()}
        id={(service) => `${service.tenant_id}-${service.name}`}
        testid="service"
        open={(service) => go(addressOf(service))}
        empty={{ title: t("services.empty"), how: t("services.emptyHow"), command: "dgpu serve app:factory --replicas 2 --port 8000 --health /healthz" }}
      />
    </Page>
  );
}

function columns(): Column<Service>[] {
  return [
    { head: t("services.name"), cell: (service) => <a href={addressOf(service)}>{service.name}</a> },
    { head: t("services.status"), cell: (service) => <State group="service" value={service.status} /> },
    { head: t("services.ready"), cell: (service) => readyOf(service), kind: "num" },
    { head: t("services.requests"), cell: (service) => number(service.requests), kind: "num" },
    { head: t("services.tenant"), cell: (service) => <TenantNames names={[service.tenant_id]} />, kind: "wide-only" },
    { head: t("services.generation"), cell: (service) => number(service.generation), kind: "num wide-only" },
    { head: t("services.address"), cell: (service) => <span class="mono">{service.url ?? t("services.noAddress")}</span>, kind: "wide-only" },
  ];
}

function readyOf(service: Service): string {
  return t("services.readyOf", { ready: service.ready, wanted: service.wanted });
}

export function ServiceView({ name }: { name: string }) {
  const tenant = route.value.query.get("tenant") ?? "";
  const asked = useAsked<Service>(`${tenant}/${name}`, (signal) => get(tenant ? servicePath({ name, tenant_id: tenant }) : `/api/v1/services/${encodeURIComponent(name)}`, {}, signal), EVERY_MS);
  const service = asked.data;
  const title = (
    <span class="row">
      <a href="/services">{t("services.title")}</a> <span class="muted">/</span> {name}
    </span>
  );
  return (
    <Page title={title} testid="service" actions={service ? <ServiceOrders service={service} refresh={asked.refresh} /> : null}>
      {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
      {!service && !asked.problem ? <Skeleton height={240} /> : null}
      {service ? (
        <div class="stack">
          <About service={service} />
          <Replicas service={service} />
          <Steps service={service} />
        </div>
      ) : null}
    </Page>
  );
}

function About({ service }: { service: Service }) {
  const { min_replicas: low, max_replicas: high } = service;
  return (
    <section class="card">
      <Facts
        rows={[
          [t("services.status"), <State group="service" value={service.status} />],
          [t("services.address"), service.url ? <span class="mono">{service.url}</span> : t("services.noAddress")],
          [t("services.replicas"), `${readyOf(service)} (${low === high ? low : t("services.between", { low, high })})`],
          [t("services.requests"), t("services.requestsOf", { n: service.requests, each: service.requests_per_replica })],
          [t("services.generation"), service.previous_generation === null ? number(service.generation) : t("services.generationAfter", { now: service.generation, before: service.previous_generation })],
          [t("services.check"), service.health ? <span class="mono">{service.health}</span> : t("services.checkPort", { port: service.port })],
          [t("services.tenant"), <TenantNames names={[service.tenant_id]} />],
          [t("services.by"), service.set_by],
        ]}
      />
    </section>
  );
}

function Replicas({ service }: { service: Service }) {
  return (
    <section class="card table-wrap" aria-label={t("services.replicas")}>
      <header>
        <h2>{t("services.replicas")}</h2>
      </header>
      {service.replicas.length ? (
        <table data-testid="replica-table">
          <thead>
            <tr>
              <th>{t("services.task")}</th>
              <th>{t("services.status")}</th>
              <th class="wide-only">{t("services.since")}</th>
              <th class="num wide-only">{t("services.generation")}</th>
              <th>{t("gpu.node")}</th>
              <th class="num">{t("services.requests")}</th>
            </tr>
          </thead>
          <tbody>
            {service.replicas.map((replica) => (
              <tr key={replica.task_id} data-testid={`replica-${replica.task_id}`}>
                <td>
                  <TaskLink id={replica.task_id} />
                </td>
                <td>
                  <State group="replica" value={replica.status} />
                </td>
                <td class="wide-only">
                  <Time at={replica.since} />
                </td>
                <td class="num wide-only">{number(replica.generation)}</td>
                <td>{replica.node ? <a href={nodeAddress(replica.node)}>{replica.node}</a> : "–"}</td>
                <td class="num">{number(replica.requests)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      ) : (
        <p class="muted">{t("services.noReplicas")}</p>
      )}
    </section>
  );
}

function Steps({ service }: { service: Service }) {
  return (
    <section class="card" aria-label={t("services.steps")}>
      <header>
        <h2>{t("services.steps")}</h2>
      </header>
      <ol class="events" data-testid="service-steps">
        {service.notes.toReversed().map((note, at) => (
          <li key={service.notes.length - at}>
            <Time at={note.at} />
            <span>{stepText(note.text)}</span>
          </li>
        ))}
      </ol>
    </section>
  );
}
