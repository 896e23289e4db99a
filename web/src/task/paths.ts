// Paths of a task's files, and the addresses they are downloaded from.

export function filesAddress(id: string): string {
  return `/api/v1/tasks/${encodeURIComponent(id)}/files`;
}

/** Of one file below the list's address. Slashes stay; all else of a name is encoded. */
export function fileAddress(list: string, file: string): string {
  return `${list}/${file.split("/").map(encodeURIComponent).join("/")}`;
}

export function nameOf(path: string): string {
  return path.slice(path.lastIndexOf("/") + 1);
}

/** a/b/c: a, a/b, a/b/c */
export function steps(path: string): string[] {
  const parts = path.split("/");
  return parts.map((_, at) => parts.slice(0, at + 1).join("/"));
}
