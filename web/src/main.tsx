import { render } from "preact";
import { App } from "./app";
import { openStream } from "./board/stream";
import { startKeyboard } from "./keyboard";
import { startClock } from "./now";
import { startRouter } from "./router";
import { comeBack, learn } from "./me";
import { redeemCode } from "./session";
import { watchStanding } from "./standing";
import { watchTheme } from "./theme";
import { Boundary } from "./ui/boundary";

async function start(): Promise<void> {
  const place = document.getElementById("app");
  if (!place) return;
  await redeemCode(); // whatever is asked before it would be refused
  await comeBack();
  void learn();
  startRouter();
  startKeyboard();
  startClock();
  watchTheme();
  place.replaceChildren();
  render(
    <Boundary>
      <App />
    </Boundary>,
    place,
  );
  openStream();
  watchStanding();
}

void start();
