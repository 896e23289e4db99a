export function Logo() {
  return (
    <svg class="logo" viewBox="0 0 32 32" aria-hidden="true">
      <g fill="currentColor">
        <rect x="3" y="3" width="12" height="12" rx="2" />
        <rect x="17" y="3" width="12" height="12" rx="2" opacity=".45" />
        <rect x="3" y="17" width="12" height="12" rx="2" opacity=".45" />
        <rect x="17" y="17" width="12" height="12" rx="2" />
      </g>
    </svg>
  );
}
