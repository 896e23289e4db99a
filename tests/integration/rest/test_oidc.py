"""Accounts of an identity provider on the API: their claims and their keys. The provider is a real server."""

from __future__ import annotations

import base64
import hmac
import json
import threading
import time
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding

from dgpu.service.oidc.verifier import KEYS_SECONDS, STALE_SECONDS
from dgpu.wire.roles import Role
from identity_provider import CLIENT, IdentityProvider, new_key
from rest_world import TOKEN, Reply, RestWorld


def whoami(world: RestWorld, token: str) -> Reply:
    return world.ask("GET", "/api/v1/whoami", headers={"Authorization": f"Bearer {token}"})


def test_an_account_acts_with_the_rights_of_its_claims(oidc_world, provider) -> None:
    told = whoami(oidc_world, provider.token())
    assert told.status == 200
    assert (told.body["user"], told.body["role"], told.body["tenants"]) == ("ann", "user", ["vision"])
    assert told.body["source"] == "oidc"
    bearer = {"Authorization": f"Bearer {provider.token()}"}
    submitted = oidc_world.ask("POST", "/api/v1/tasks", {"command": "true"}, bearer)
    task = oidc_world.ask("GET", f"/api/v1/tasks/{submitted.body['task_id']}", headers=bearer).body
    assert (task["tenant_id"], task["labels"]["user"]) == ("vision", "ann")
    foreign = oidc_world.ask("POST", "/api/v1/tasks", {"command": "true", "tenant_id": "speech"}, bearer)
    assert foreign.status == 403


def test_the_strongest_role_counts(oidc_world, provider) -> None:
    told = whoami(oidc_world, provider.token(groups=["vision", "gpu-operators", "gpu-admins"])).body
    assert (told["role"], told["tenants"]) == ("admin", ["*"])


@pytest.mark.parametrize(
    ("claims", "status", "code"),
    [
        ({"iss": "https://evil.example"}, 403, "wrong_token"),
        ({"iss": None}, 403, "wrong_token"),
        ({"aud": "another"}, 403, "wrong_token"),
        ({"aud": None}, 403, "wrong_token"),
        ({"aud": [CLIENT, "another"]}, 200, ""),
        ({"exp": -60}, 401, "token_expired"),
        ({"exp": -59}, 200, ""),
        ({"exp": None}, 403, "wrong_token"),
        ({"exp": "soon"}, 403, "wrong_token"),
        ({"exp": True}, 403, "wrong_token"),
        ({"nbf": 61}, 403, "wrong_token"),
        ({"nbf": 60}, 200, ""),
        ({"iat": 61}, 403, "wrong_token"),
        ({"preferred_username": None}, 403, "no_account"),
        ({"preferred_username": "a\nb"}, 403, "no_account"),
        ({"groups": None}, 403, "no_account"),
        ({"groups": ["All Staff"]}, 403, "no_account"),
        ({"groups": {"vision": True}}, 403, "no_account"),
    ],
)
def test_claims_are_checked(oidc_world, provider, claims, status, code) -> None:
    """Times are seconds from now. The clocks may differ by a minute."""
    now = int(time.time())
    oidc_world.oidc.tokens._wall_s = lambda: now
    given = {name: now + value if type(value) is int else value for name, value in claims.items()}
    told = whoami(oidc_world, provider.token(**given))
    assert (told.status, told.body.get("code", "")) == (status, code), told


def test_a_token_for_another_audience_is_named_and_the_remedy_too(oidc_world, provider) -> None:
    claims = {"aud": ["grafana", "x\n" + "y" * 500, 7], "jti": "id-4711"}
    told = whoami(oidc_world, provider.token(**claims)).body["detail"]
    assert told.startswith("The token of ann (jti id-4711) is for another audience: 'grafana', 'x?yyy")
    assert f"expected {CLIENT!r}. Request a token for this audience" in told
    assert "auth.oidc.audience" in told
    assert len(told) < 500
    nameless = whoami(oidc_world, provider.token(aud=None, sub=None, preferred_username=["ann"])).body[
        "detail"
    ]
    assert nameless.startswith("The token is for another audience: (none), expected")
    expired = whoami(oidc_world, provider.token(exp=int(time.time()) - 999)).body["detail"]
    assert expired == "The token of ann is expired. Get another one from the identity provider."


def raw(part: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=").decode()


def unsigned(provider: IdentityProvider) -> str:
    _, claims, _ = provider.token().split(".")
    return f"{raw({'alg': 'none', 'kid': 'k1'})}.{claims}."


def signed_with_the_public_key(provider: IdentityProvider) -> str:
    """As if the published key were a secret. The library refuses to do that, so it is done by hand."""
    signed = f"{raw({'alg': 'HS256', 'kid': 'k1'})}.{provider.token().split('.')[1]}"
    digest = hmac.digest(provider.key.as_pem(private=False), signed.encode(), "sha256")
    return f"{signed}.{base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"


def with_an_unknown_condition(provider: IdentityProvider) -> str:
    """A receiver that does not know a critical field must refuse. The signature is right."""
    head = raw({"alg": "RS256", "kid": "k1", "crit": ["bound-to"], "bound-to": "another receiver"})
    signed = f"{head}.{provider.token().split('.')[1]}"
    signature = provider.key.private_key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    return f"{signed}.{base64.urlsafe_b64encode(signature).rstrip(b'=').decode()}"


def claims_of(token: str) -> dict[str, Any]:
    part = token.split(".")[1]
    return dict(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))))


def with_other_claims(provider: IdentityProvider) -> str:
    head, _, signature = provider.token().split(".")
    return f"{head}.{raw({**claims_of(provider.token()), 'groups': ['gpu-admins']})}.{signature}"


@pytest.mark.parametrize(
    "forge",
    [
        unsigned,
        signed_with_the_public_key,
        with_other_claims,
        lambda provider: provider.token(key=new_key("k1")),
        lambda provider: provider.token(key=new_key("k1", "EC"), header={"alg": "ES256"}),
        lambda provider: provider.token(header={"alg": "RS512"}),
        with_an_unknown_condition,
        lambda provider: provider.token()[:-4] + "AAAA",
        lambda provider: f"eyJ.{'x' * 20_000}.y",
        lambda provider: "eyJhbGciOiJSUzI1NiJ9..",
        lambda provider: f"{raw({'alg': 'RS256', 'kid': ['k1']})}.e30.AA",
        lambda provider: f"{raw(['RS256'])}.e30.AA",
    ],
)
def test_a_forged_token_is_refused(oidc_world, provider, forge) -> None:
    told = whoami(oidc_world, forge(provider))
    assert (told.status, told.body["code"]) == (403, "wrong_token"), told


def test_guesses_are_counted(oidc_world, provider) -> None:
    statuses = [whoami(oidc_world, with_other_claims(provider)).status for _ in range(11)]
    assert statuses == [403] * 10 + [429]


def test_expired_tokens_are_not_guesses(oidc_world, provider) -> None:
    statuses = {whoami(oidc_world, provider.token(exp=int(time.time()) - 999)).status for _ in range(12)}
    assert statuses == {401}


def test_a_token_that_was_good_ends_on_time(oidc_world, provider) -> None:
    """Verified tokens are remembered, and still expire."""
    token = provider.token()
    assert whoami(oidc_world, token).status == 200
    now = time.time()
    oidc_world.oidc.tokens._wall_s = lambda: now + 361
    assert whoami(oidc_world, token).status == 401


def test_new_keys_are_found_and_withdrawn_ones_are_refused(oidc_world, provider) -> None:
    old = provider.token()
    assert whoami(oidc_world, old).status == 200
    provider.key = new_key("k2", "EC")
    provider.algorithm, provider.published = "ES256", [provider.key]
    oidc_world.oidc.tokens._next_read_s = 0.0  # the pause after the last request is over
    assert whoami(oidc_world, provider.token()).status == 200
    assert whoami(oidc_world, old).status == 403


def test_unknown_keys_are_one_request_in_a_while(oidc_world, provider) -> None:
    """Anybody can send a token with a key of their own; that must not become a flood at the provider."""
    whoami(oidc_world, provider.token())
    for number in range(5):
        assert whoami(oidc_world, provider.token(key=new_key(f"own-{number}"))).status == 403
    assert provider.count("/keys") == 1


def test_old_keys_are_read_again_without_delay(oidc_world, provider) -> None:
    assert whoami(oidc_world, provider.token()).status == 200
    facts = oidc_world.oidc.tokens._facts
    oidc_world.oidc.tokens._facts = facts._replace(read_at_s=facts.read_at_s - KEYS_SECONDS - 1)
    oidc_world.oidc.tokens._next_read_s = 0.0
    provider.hold = threading.Event()
    assert whoami(oidc_world, provider.token(jti="another")).status == 200, "with the keys that are known"
    provider.hold.set()


def test_without_its_provider_tokens_are_503_and_all_else_works(oidc_world, provider) -> None:
    provider.is_broken = True
    told = whoami(oidc_world, provider.token())
    assert (told.status, told.body["code"]) == (503, "oidc_away")
    assert "answered 500" in told.body["detail"]
    assert told.headers["retry-after"] == "1"
    assert whoami(oidc_world, TOKEN).status == 200
    assert oidc_world.ask("POST", "/api/v1/session/oidc", {}).status == 503
    asked = len(provider.asked)
    for _ in range(5):
        assert whoami(oidc_world, provider.token()).status == 503
    assert len(provider.asked) == asked, "and the provider is left alone for a while"
    provider.is_broken = False
    oidc_world.oidc.tokens._next_read_s = 0.0
    assert whoami(oidc_world, provider.token()).status == 200


def test_known_keys_outlive_the_provider_for_a_day(oidc_world, provider) -> None:
    assert whoami(oidc_world, provider.token()).status == 200
    provider.is_broken = True
    assert whoami(oidc_world, provider.token(jti="2")).status == 200
    facts = oidc_world.oidc.tokens._facts
    oidc_world.oidc.tokens._facts = facts._replace(read_at_s=facts.read_at_s - STALE_SECONDS - 1)
    oidc_world.oidc.tokens._next_read_s = 0.0
    assert whoami(oidc_world, provider.token(jti="3")).status == 503


def test_a_provider_that_hangs_delays_nobody_else(oidc_world, provider) -> None:
    provider.hold = threading.Event()
    answers: list[Reply] = []
    waiting = [
        threading.Thread(target=lambda: answers.append(whoami(oidc_world, provider.token())))
        for _ in range(3)
    ]
    for thread in waiting:
        thread.start()
    while not provider.asked:
        time.sleep(0.005)
    assert whoami(oidc_world, TOKEN).status == 200
    provider.hold.set()
    for thread in waiting:
        thread.join(30)
    assert [answer.status for answer in answers] == [200] * 3
    assert provider.count("/keys") == 1, "one request serves all that wait"


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://evil.example"},
        {"jwks_uri": "http://evil.example/keys"},
        {"jwks_uri": 7},
        {"token_endpoint": "file:///etc/passwd"},
    ],
)
def test_a_discovery_document_that_makes_no_sense_is_refused(oidc_world, provider, changes) -> None:
    provider.metadata_changes = changes
    assert whoami(oidc_world, provider.token()).status == 503


@pytest.mark.parametrize("oidc_settings", [{"audience": "dgpu-api"}])
def test_the_api_can_have_an_audience_of_its_own(oidc_world, provider) -> None:
    assert whoami(oidc_world, provider.token()).status == 403
    assert whoami(oidc_world, provider.token(aud="dgpu-api")).status == 200


@pytest.mark.parametrize(
    "oidc_settings",
    [
        {
            "tenants_claim": "realm_access.roles",
            "tenants": {"team-vision": "vision", "team-speech": "speech"},
            "default_role": None,
            "roles": {"leads": Role.TENANT_ADMIN},
        }
    ],
)
def test_claims_are_mapped_as_configured(oidc_world, provider) -> None:
    access = {"roles": ["speech", "team-speech", "team-vision"]}
    told = whoami(oidc_world, provider.token(realm_access=access, groups=["leads"])).body
    assert (told["role"], told["tenants"]) == ("tenant-admin", ["speech", "vision"])
    assert whoami(oidc_world, provider.token(realm_access=access, groups=[])).body["code"] == "no_account"
    assert (
        whoami(oidc_world, provider.token(realm_access={"roles": ["speech"]}, groups=["leads"])).status == 403
    )
