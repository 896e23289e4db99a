// Where each GPU of the map is drawn. Pure: numbers in, numbers out.

export interface Layout {
  cell: number;
  gap: number;
  label: number; // room for the node's name; 0: too many nodes for names
  perRow: number; // GPUs of a node beside each other
  columns: number;
  tileWidth: number;
  tileHeight: number;
  width: number;
  height: number;
}

interface Size {
  cell: number;
  gap: number;
  label: number;
  space: number;
}

// From one workstation to two thousand nodes: the largest that needs no endless scrolling.
const SIZES: Size[] = [
  { cell: 52, gap: 4, label: 150, space: 12 },
  { cell: 38, gap: 4, label: 140, space: 10 },
  { cell: 26, gap: 3, label: 132, space: 10 },
  { cell: 20, gap: 3, label: 112, space: 8 },
  { cell: 15, gap: 2, label: 92, space: 7 },
  { cell: 11, gap: 2, label: 72, space: 6 },
  { cell: 9, gap: 1, label: 0, space: 5 },
  { cell: 7, gap: 1, label: 0, space: 4 },
];
const MAX_HEIGHT = 440;
const MAX_PER_ROW = 16;
const BETWEEN = 22;
const BESIDE_NAME = 14; // pixels

/** `widestName`: pixels of it; no more room is kept for names than they need. */
export function layOut(gpusOfNodes: number[], width: number, widestName = 300): Layout {
  const widest = Math.max(1, ...gpusOfNodes.map((gpus) => Math.min(gpus, MAX_PER_ROW)));
  const rows = Math.max(1, ...gpusOfNodes.map((gpus) => Math.ceil(gpus / MAX_PER_ROW)));
  let made: Layout | null = null;
  for (const size of SIZES) {
    const label = size.label && Math.min(size.label, BESIDE_NAME + Math.ceil(widestName));
    made = fit({ ...size, label }, gpusOfNodes.length, widest, rows, width);
    if (made.height <= MAX_HEIGHT && made.tileWidth <= width) return made;
  }
  return made as Layout;
}

function fit(size: Size, nodes: number, perRow: number, rows: number, width: number): Layout {
  const step = size.cell + size.gap;
  const between = size.label ? BETWEEN : size.cell;
  const tileWidth = size.label + perRow * step;
  const tileHeight = rows * step + size.space;
  const columns = Math.max(1, Math.floor((width + between) / (tileWidth + between)));
  const height = Math.ceil(nodes / columns) * tileHeight;
  return { cell: size.cell, gap: size.gap, label: size.label, perRow, columns, tileWidth: tileWidth + between, tileHeight, width, height };
}

/** The upper left corner of the n-th GPU of the n-th node. */
export function cornerOf(layout: Layout, node: number, gpu: number): { x: number; y: number } {
  const step = layout.cell + layout.gap;
  return {
    x: (node % layout.columns) * layout.tileWidth + layout.label + (gpu % layout.perRow) * step,
    y: Math.floor(node / layout.columns) * layout.tileHeight + Math.floor(gpu / layout.perRow) * step,
  };
}

/** Which node and GPU are at a point; gaps belong to the cell before them, so that small cells can be hit. */
export function hit(layout: Layout, gpusOfNodes: number[], x: number, y: number): { node: number; gpu: number } | null {
  const column = Math.floor(x / layout.tileWidth);
  const row = Math.floor(y / layout.tileHeight);
  const node = row * layout.columns + column;
  const inX = x - column * layout.tileWidth - layout.label;
  const inY = y - row * layout.tileHeight;
  const gpus = gpusOfNodes[node];
  if (column < 0 || column >= layout.columns || row < 0 || gpus === undefined || inX < 0) return null;
  const step = layout.cell + layout.gap;
  const across = Math.floor(inX / step);
  const gpu = Math.floor(inY / step) * layout.perRow + across;
  return across < layout.perRow && gpu >= 0 && gpu < gpus ? { node, gpu } : null;
}
