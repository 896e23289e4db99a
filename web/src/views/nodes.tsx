// The machines: which are in service, and taking one out of it or back.
import { useEffect } from "preact/hooks";
import { get } from "../api";
import { board, onTasks } from "../board/stream";
import { t } from "../i18n";
import { go, route, setQuery } from "../router";
import type { Node, NodeList } from "../types";
import { useAsked, useThrottled } from "../ui/asked";
import { List, type Column } from "../ui/list";
import { nodeAddress, Page, Time } from "../ui/parts";
import { NodeView } from "../node/node";
import { NodeOrders, NodeState } from "../node/orders";

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
  return (
    <Page
      title={t("nodes.title")}
      testid="nodes"
      actions={<input type="search" class="filter" placeholder={t("nodes.filter")} aria-label={t("nodes.filter")} value={text} onInput={(event) => setQuery({ find: event.currentTarget.value }, { replace: true })} />}
    >
      <List
        asked={asked}
        rowsOf={(data) => data.nodes}
        shown={(node) => !text || wordsOf(node).includes(text)}
        columns={columns(asked.refresh)}
        id={(node) => node.id}
        testid="node"
        open={(node) => go(nodeAddress(node.id))}
        empty={{ title: t("cluster.noNodes"), how: t("cluster.noNodesHow"), command: "dgpu agent --config agent.yaml" }}
      />
    </Page>
  );
}

function wordsOf(node: Node): string {
  return [node.id, node.status, ...node.gpu_models, labelsOf(node)].join(" ").toLowerCase();
}

function columns(refresh: () => void): Column<Node>[] {
  return [
    { head: t("nodes.node"), cell: (node) => <a href={nodeAddress(node.id)}>{node.id}</a> },
    { head: t("nodes.state"), cell: (node) => <NodeState node={node} /> },
    { head: t("nodes.gpus"), cell: (node) => `${node.gpus - node.gpus_free} / ${node.gpus}`, kind: "num", title: (node) => t("nodes.free", { free: node.gpus_free, all: node.gpus }) },
    { head: t("nodes.models"), cell: (node) => node.gpu_models.join(", "), kind: "wide-only" },
    { head: t("nodes.tasks"), cell: (node) => <Tasks node={node} />, kind: "num" },
    { head: t("nodes.labels"), cell: labelsOf, kind: "wide-only muted" },
    { head: t("nodes.since"), cell: (node) => <Time at={node.registered_at} />, kind: "wide-only" },
    { head: t("nodes.agent"), cell: (node) => node.agent_version, kind: "wide-only muted" },
    { head: t("nodes.orders"), cell: (node) => <NodeOrders node={node} refresh={refresh} />, kind: "actions" },
  ];
}

function Tasks({ node }: { node: Node }) {
  if (!node.tasks.length) return <>0</>;
  return <a href={`/tasks?node=${encodeURIComponent(node.id)}&status=running`}>{node.tasks.length}</a>;
}

function labelsOf(node: Node): string {
  return Object.entries(node.labels)
    .map(([name, value]) => `${name}=${value}`)
    .join(", ");
}
