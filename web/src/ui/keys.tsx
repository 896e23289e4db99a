// What each key does, and a switch for single letters.
import { t, type MessageKey } from "../i18n";
import { helpShown, keysOn, placesOfViewer, setKeys } from "../keyboard";
import { may } from "../me";
import { Dialog } from "./dialog";

export function Keys() {
  const close = () => (helpShown.value = false);
  const rows: [string, string][] = [
    ["/", t("keys.search")],
    ...(may("task.submit") ? [["c", t("keys.new")] as [string, string]] : []),
    ...placesOfViewer().map(([key, view]): [string, string] => [`g ${key}`, t(`nav.${view}` as MessageKey)]),
    ["j k", t("keys.move")],
    ["Enter", t("keys.open")],
    ["x", t("keys.select")],
    ["← ↑ ↓ →", t("keys.arrows")],
    ["Esc", t("keys.close")],
    ["?", t("keys.help")],
  ];
  return (
    <Dialog label={t("keys.title")} onClose={close} testid="keys">
      <div class="inner">
        <h2>{t("keys.title")}</h2>
        <dl class="facts">
          {rows.map(([keys, text]) => (
            <>
              <dt key={keys}>
                {keys.split(" ").map((key) => (
                  <kbd key={key}>{key}</kbd>
                ))}
              </dt>
              <dd>{text}</dd>
            </>
          ))}
        </dl>
        <label class="row keys-on">
          <input type="checkbox" checked={keysOn.value} onChange={(event) => setKeys(event.currentTarget.checked)} data-testid="keys-on" /> {t("keys.on")}
        </label>
        <footer>
          <button type="button" onClick={close}>
            {t("common.close")}
          </button>
        </footer>
      </div>
    </Dialog>
  );
}
