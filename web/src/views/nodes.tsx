// The machines: which are in service, and taking one out of it or back.
import { useEffect, useMemo } from "preact/hooks";
import { get } from "../api";
import { board, onTasks } from "../board/stream";
import { number } from "../format";
import { t } from "../i18n";
import { go, route, setQuery } from "../router";
import type { Node, NodeList } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { CopyLine, Empty, nodeAddress, Page, ProblemBox, Skeleton, Time } from "../ui/parts";
import { useRows } from "../ui/rows";
import { NodeView } from "../node/node";
import { NodeOrders, NodeState } from "../node/orders";

const MAX_ROWS = 300;

export function Nodes() {
  const chosen = route.value.query.get("node");
  return chosen ? <NodeView key={chosen} id={chosen} /> : <NodeList />;
}

function NodeList() {
  const text = (route.value.query.get("find") ?? "").toLowerCase();
  const asked = useAsked<NodeList>("nodes", (signal) => get("/api/v1/nodes", {}, signal), 20_000);
  const refresh = useThrottled(asked.refresh, 2_000);
  const states = board.value?.nodes.status;
  useEffect(refresh, [states, board.value?.nodes.id.length]);
  useEffect(() => onTasks(refresh), []);
  const nodes = asked.data?.nodes ?? [];
  const shown = useMemo(() => nodes.filter((node) => !text || wordsOf(node).includes(text)), [nodes, text]);
  return (
    <Page
      title={t("nodes.title")}
      testid="nodes"
      actions={<input type="search" class="filter" placeholder={t("nodes.filter")} aria-label={t("nodes.filter")} value={text} onInput={(event) => setQuery({ find: event.currentTarget.value }, { replace: true })} />}
    >
      <section class="card">
        {asked.problem ? <ProblemBox problem={asked.problem} retry={asked.refresh} /> : null}
        {!asked.data && !asked.problem ? <Skeleton lines={8} height={26} /> : null}
        {asked.data && nodes.length === 0 ? (
          <Empty title={t("cluster.noNodes")}>
            <p>{t("cluster.noNodesHow")}</p>
            <CopyLine text="dgpu agent --config agent.yaml" />
          </Empty>
        ) : null}
        {shown.length ? <Table nodes={shown} refresh={asked.refresh} /> : null}
        {nodes.length && !shown.length ? <Empty title={t("cluster.noMatch")} /> : null}
        {shown.length > MAX_ROWS ? <p class="muted small-print">{t("common.more", { n: number(shown.length - MAX_ROWS) })}</p> : null}
      </section>
    </Page>
  );
}

function wordsOf(node: Node): string {
  return [node.id, node.status, ...node.gpu_models, ...Object.entries(node.labels).map(([name, value]) => `${name}=${value}`)].join(" ").toLowerCase();
}

function Table({ nodes, refresh }: { nodes: Node[]; refresh: () => void }) {
  const at = useRows(nodes, { open: (node) => go(nodeAddress(node.id)) });
  return (
    <div class="table-wrap">
      <table data-testid="node-table">
        <thead>
          <tr>
            <th>{t("nodes.node")}</th>
            <th>{t("nodes.state")}</th>
            <th class="num">{t("nodes.gpus")}</th>
            <th class="wide-only">{t("nodes.models")}</th>
            <th class="num">{t("nodes.tasks")}</th>
            <th class="wide-only">{t("nodes.labels")}</th>
            <th class="wide-only">{t("nodes.since")}</th>
            <th class="wide-only">{t("nodes.agent")}</th>
            <th>
              <span class="hidden-text">{t("nodes.orders")}</span>
            </th>
          </tr>
        </thead>
        <tbody>
          {nodes.slice(0, MAX_ROWS).map((node, row) => (
            <tr key={node.id} class={row === at ? "at" : ""} data-testid={`node-${node.id}`}>
              <td>
                <a href={nodeAddress(node.id)}>{node.id}</a>
              </td>
              <td>
                <NodeState node={node} />
              </td>
              <td class="num" title={t("nodes.free", { free: node.gpus_free, all: node.gpus })}>
                {node.gpus - node.gpus_free} / {node.gpus}
              </td>
              <td class="wide-only">{node.gpu_models.join(", ")}</td>
              <td class="num">{node.tasks.length ? <a href={`/tasks?node=${encodeURIComponent(node.id)}&status=running`}>{node.tasks.length}</a> : 0}</td>
              <td class="wide-only muted">
                {Object.entries(node.labels)
                  .map(([name, value]) => `${name}=${value}`)
                  .join(", ")}
              </td>
              <td class="wide-only">
                <Time at={node.registered_at} />
              </td>
              <td class="wide-only muted">{node.agent_version}</td>
              <td class="num">
                <NodeOrders node={node} refresh={refresh} />
              </td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}
