// A view that cannot be shown, for whatever reason, leaves the rest of the page standing and says so.
import { Component, type ComponentChildren } from "preact";
import { t } from "../i18n";

interface Failed {
  detail: string | null;
}

export class Boundary extends Component<{ children: ComponentChildren }, Failed> {
  override state: Failed = { detail: null };

  static getDerivedStateFromError(error: unknown): Failed {
    return { detail: error instanceof Error ? error.message : String(error) };
  }

  override componentDidCatch(error: unknown): void {
    console.error(error);
  }

  override render() {
    if (this.state.detail === null) return this.props.children;
    return (
      <div class="problem" role="alert" data-testid="broken">
        <strong>{t("broken.title")} </strong>
        <span>{t("broken.detail")}</span>
        <div class="row muted">
          <small>{this.state.detail}</small>
          <button type="button" onClick={() => location.reload()}>
            {t("broken.reload")}
          </button>
        </div>
      </div>
    );
  }
}
