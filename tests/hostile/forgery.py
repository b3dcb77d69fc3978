"""Tokens that are not worth anything, each wrong in one way that some reader of tokens once fell for.

A forger here knows everything but the key; a mistaken signer even has it. The first must never cause a look at the
table.
"""

import base64
import hmac
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sluice.services.signing import key_id

ATTACKER: Final = b"a" * 64
PEM: Final = b"-----BEGIN PUBLIC KEY-----\nMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE\n-----END PUBLIC KEY-----\n"
_BASE64URL: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
_TIMES: Final = ("iat", "exp")

Case = tuple[str, str]


def segment(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def to_json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


@dataclass(frozen=True)
class Forge:
    """`claims`: of a token that is accepted. `now_s`: when."""

    key: bytes = field(repr=False)
    claims: Mapping[str, Any]
    now_s: int

    @property
    def header(self) -> dict[str, Any]:
        return {"alg": "HS256", "kid": key_id(self.key), "typ": "JWT"}

    @property
    def good(self) -> str:
        return self.signed()

    def with_claims(self, **changed: Any) -> str:
        return self.signed(claims={**self.claims, **changed})

    def with_header(self, key: bytes | None = None, **changed: Any) -> str:
        return self.signed(header={**self.header, **changed}, key=key)

    def signed(
        self,
        header: Mapping[str, Any] | None = None,
        claims: Mapping[str, Any] | None = None,
        key: bytes | None = None,
        digest: str = "sha256",
    ) -> str:
        return self.raw(
            to_json(self.header if header is None else header),
            to_json(self.claims if claims is None else claims),
            key,
            digest,
        )

    def raw(self, header: bytes, claims: bytes, key: bytes | None = None, digest: str = "sha256") -> str:
        signed = f"{segment(header)}.{segment(claims)}"
        mac = hmac.digest(self.key if key is None else key, signed.encode(), digest)
        return f"{signed}.{segment(mac)}"


def forged(forge: Forge) -> list[Case]:
    """Each with its name. None of them is accepted, whatever the table says."""
    families = {
        "none": _no_algorithm(forge),
        "algorithm": _other_algorithms(forge),
        "kid": _key_names(forge),
        "header": _headers(forge),
        "time": _times(forge),
        "claim": _claims(forge),
        "twice": _members_twice(forge),
        "unsigned": _unsigned_changes(forge),
        "signature": _signatures(forge),
        "spelling": _spellings(forge),
        "form": _forms(forge),
        "json": _not_our_json(forge),
        "size": _sizes(forge),
        "text": _texts(forge),
    }
    return [(f"{family}: {name}", token) for family, cases in families.items() for name, token in cases]


def _no_algorithm(forge: Forge) -> Iterator[Case]:
    signature = forge.good.rpartition(".")[2]
    for letters in itertools.product(*((letter, letter.upper()) for letter in "none")):
        spelled = "".join(letters)
        unsigned = forge.with_header(alg=spelled).rpartition(".")[0]
        yield f"{spelled} without a signature", f"{unsigned}."
        yield f"{spelled} with the signature of another", f"{unsigned}.{signature}"
        yield f"{spelled} signed", forge.with_header(alg=spelled)
    for spelled in ("none ", " none", "none\0", "n\u043ene", "n\u03bfne"):
        yield f"{spelled!r}", forge.with_header(alg=spelled).rpartition(".")[0] + "."
    bare = segment(to_json({"alg": "none"})) + "." + segment(to_json(forge.claims))
    yield "nothing but none", f"{bare}."
    yield "nothing but none, two parts", bare


def _other_algorithms(forge: Forge) -> Iterator[Case]:
    asymmetric = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "ES256K", "EdDSA")
    for algorithm in asymmetric:
        yield f"{algorithm} with our key", forge.with_header(alg=algorithm)
        yield f"{algorithm} with a public key", forge.with_header(PEM, alg=algorithm)
    for algorithm, digest in (("HS384", "sha384"), ("HS512", "sha512"), ("HS1", "sha1"), ("HS224", "sha224")):
        header = {**forge.header, "alg": algorithm}
        yield f"{algorithm} with our key", forge.signed(header, digest=digest)
        yield f"{algorithm} said, HS256 done", forge.signed(header)
        yield f"HS256 said, {algorithm} done", forge.signed(digest=digest)
    for odd in ("hs256", "Hs256", "HS256 ", " HS256", "HS256\0", "HS-256", "", "dir", "A256KW", "SHA256"):
        yield f"the algorithm {odd!r}", forge.with_header(alg=odd)
    for no_text in (None, 256, True, ["HS256"], {"HS256": 1}, 1.5):
        yield f"the algorithm {no_text!r}", forge.with_header(alg=no_text)
    public = key_id(forge.key).encode()
    for name, key in (("a public key", PEM), ("no key", b""), ("the name of the key", public), ("a guess", ATTACKER)):
        yield f"{name} as the secret", forge.signed(key=key)


def _key_names(forge: Forge) -> Iterator[Case]:
    ours = key_id(forge.key)
    odd: list[Any] = [
        *("../../../../dev/null", "/dev/null", "/proc/self/environ", "..\\..\\windows\\win.ini", "file:///dev/null"),
        *("http://attacker.test/key", "https://attacker.test/jwks.json", "ldap://attacker.test/x", "//attacker.test"),
        *("' UNION SELECT 'a", "1' OR '1'='1", '"; DROP TABLE keys; --', "x' AND SLEEP(5)--", "$(id)", "`id`", "|id"),
        *("\0", f"{ours}\0", f"\0{ours}", f"{ours}\n", f" {ours}", f"{ours} ", ours.upper(), ours[:-1], f"{ours}0"),
        *("", "0", "current", "previous", key_id(ATTACKER), "é", "\ud800", "{{7*7}}", "%s%n", "a" * 1500, "__proto__"),
        *(None, 0, 1, True, [], [ours], {}, {"kid": ours}, 1.5),
    ]
    for number, kid in enumerate(odd):
        shown = repr(kid)[:30]
        yield f"{number} {shown}, signed with our key", forge.with_header(kid=kid)
        yield f"{number} {shown}, signed with nothing", forge.with_header(b"", kid=kid)
        yield f"{number} {shown}, signed by a stranger", forge.with_header(ATTACKER, kid=kid)
    yield "ours, signed by a stranger", forge.signed(key=ATTACKER)


def _headers(forge: Forge) -> Iterator[Case]:
    octets = {"kty": "oct", "k": segment(ATTACKER), "alg": "HS256"}
    extra: list[tuple[str, Any]] = [
        ("jku", "https://attacker.test/jwks.json"),
        ("jku", "http://169.254.169.254/latest/meta-data"),
        ("x5u", "https://attacker.test/chain.pem"),
        ("jwk", octets),
        ("jwk", {"kty": "RSA", "n": "AQAB", "e": "AQAB"}),
        ("x5c", [base64.b64encode(ATTACKER).decode()]),
        ("x5t", segment(ATTACKER[:20])),
        ("x5t#S256", segment(ATTACKER[:32])),
        ("crit", ["exp"]),
        ("crit", ["b64"]),
        ("crit", []),
        ("crit", "exp"),
        ("b64", False),
        ("b64", True),
        ("cty", "JWT"),
        ("zip", "DEF"),
        ("enc", "A256GCM"),
        ("p2c", 10**9),
        ("epk", {}),
        ("url", "https://attacker.test"),
        ("nonce", "x"),
        ("iss", forge.claims["iss"]),
        ("exp", forge.claims["exp"]),
        ("", ""),
    ]
    for number, (name, value) in enumerate(extra):
        yield f"{number} {name}, signed with our key", forge.with_header(**{name: value})
        yield f"{number} {name}, signed by a stranger", forge.with_header(ATTACKER, **{name: value})
    yield "crit and b64 as RFC 7797 has it", forge.with_header(b64=False, crit=["b64"])
    for name in ("alg", "kid", "typ"):
        yield f"without {name}", forge.signed({key: value for key, value in forge.header.items() if key != name})
    for typ in ("jwt", "JWE", "JOSE", "at+jwt", "application/jwt", "", "JWT ", None, 1, ["JWT"]):
        yield f"the type {typ!r}", forge.with_header(typ=typ)
    yield "an empty header", forge.signed({})
    yield "names in capitals", forge.signed({name.upper(): value for name, value in forge.header.items()})


def _times(forge: Forge) -> Iterator[Case]:
    now, leeway = forge.now_s, 10
    lifetime = forge.claims["exp"] - forge.claims["iat"]
    pairs = {
        "ended when the leeway ends": (now - lifetime - leeway, now - leeway),
        "ended an hour ago": (now - lifetime - 3600, now - 3600),
        "ended in 1970": (1, 1 + lifetime),
        "begins after the leeway": (now + leeway + 1, now + leeway + 1 + lifetime),
        "begins tomorrow": (now + 86_400, now + 86_400 + lifetime),
        "ends when it begins": (now, now),
        "ends before it begins": (now, now - 1),
        "ends before it begins, both ahead": (now + 5, now + 4),
        "a second too long": (now, now + lifetime + 1),
        "forever": (now, 10**12),
        "in milliseconds": (now * 1000, (now + lifetime) * 1000),
        "its end in milliseconds": (now, (now + lifetime) * 1000),
    }
    for name, (issued, expires) in pairs.items():
        yield name, forge.with_claims(iat=issued, exp=expires)
    for claim in _TIMES:
        good = forge.claims[claim]
        odd = (0, -1, -good, 2**31, 2**63, 2**64, 10**30, 10**300, str(good), f"{good}.0", float(good), good + 0.5)
        for number, value in enumerate((*odd, True, False, "", "now", "9999-12-31T23:59:59Z", [good], {"$gt": 0})):
            # The end of 31 bits is a time like any other, only far away.
            yield f"{claim} {number} {str(value)[:20]}", forge.with_claims(**{claim: value})
        for literal in ("NaN", "Infinity", "-Infinity", "1e400", "-0", "1e9", "0x6b49d200", "01", f"+{good}"):
            text = to_json({**forge.claims, claim: "@"}).replace(b'"@"', literal.encode())
            yield f"{claim} as {literal}", forge.raw(to_json(forge.header), text)


def _claims(forge: Forge) -> Iterator[Case]:
    for name in forge.claims:
        yield f"without {name}", forge.signed(claims={key: one for key, one in forge.claims.items() if key != name})
        other: Any = 1 if isinstance(forge.claims[name], str) else "1"
        for value in (None, True, [], {}, 1.5, "", other, [forge.claims[name]], {"$ne": ""}):
            yield f"{name} as {value!r}", forge.with_claims(**{name: value})
        if isinstance(forge.claims[name], str):
            for long in ("n" * 257, "é" * 129, "\ud800" * 86, "\0" * 257):
                yield f"{name} of {len(long)} {long[0]!r}", forge.with_claims(**{name: long})
    for name in ("nbf", "scope", "admin", "roles", "ISS", "Role", "__proto__", "", "entity"):
        yield f"one claim more, {name!r}", forge.with_claims(**{name: forge.now_s})
    for issuer in ("sluice", "sluice-prod", f"{forge.claims['iss']} ", forge.claims["iss"].upper(), "https://attacker"):
        yield f"the issuer {issuer!r}", forge.with_claims(iss=issuer)
    for audience in ("Sluice", "sluice ", "other", "*", ["sluice"], ["sluice", "other"], ["other"], [["sluice"]]):
        yield f"the audience {audience!r}", forge.with_claims(aud=audience)
    swapped = {"access": "refresh", "refresh": "access"}[forge.claims["use"]]
    for use in (swapped, "ACCESS", "Access", "id", "access ", "*", ["access"]):
        yield f"the use {use!r}", forge.with_claims(use=use)
    for role in ("operator", "admin", "ORG", "App", "other", "*", ["org", "app"]):
        yield f"the role {role!r}", forge.with_claims(role=role)
    for generation in (0, -1, 1.0, "1", True):
        yield f"the generation {generation!r}", forge.with_claims(gen=generation)


def _members_twice(forge: Forge) -> Iterator[Case]:
    """Signed with our key: which of the two counts depends on the reader, so neither does."""

    def doubled(members: Mapping[str, Any], name: str, value: object, *, first: bool) -> bytes:
        text, more = to_json(members)[1:-1], to_json({name: value})[1:-1]
        return b"{" + (more + b"," + text if first else text + b"," + more) + b"}"

    header, claims = to_json(forge.header), to_json(forge.claims)
    for name, value in forge.header.items():
        for first in (True, False):
            yield f"{name} again, {first}", forge.raw(doubled(forge.header, name, value, first=first), claims)
            yield f"{name} none, {first}", forge.raw(doubled(forge.header, name, "none", first=first), claims)
    for name, value in forge.claims.items():
        for first in (True, False):
            yield f"{name} again, {first}", forge.raw(header, doubled(forge.claims, name, value, first=first))
            yield f"{name} other, {first}", forge.raw(header, doubled(forge.claims, name, "x", first=first))
    escaped = claims.replace(b'{"', b'{"\\u006es":"other","', 1)
    yield "ns again, escaped", forge.raw(header, escaped)


def _unsigned_changes(forge: Forge) -> Iterator[Case]:
    header, _, signature = forge.good.split(".")

    def changed(**claims: Any) -> str:
        return f"{header}.{segment(to_json({**forge.claims, **claims}))}.{signature}"

    for name, value in {
        "ns": "ns2",
        "ent": "acme",
        "role": "org",
        "sub": "somebody",
        "gen": 2,
        "jti": "fresh",
        "fam": "fresh",
        "iat": forge.claims["iat"] + 1,
        "exp": forge.claims["exp"] + 3600,
        "iss": "sluice-prod",
        "aud": "other",
        "use": "admin",
    }.items():
        yield f"another {name}", changed(**{name: value})
    yield "another namespace, entity and role", changed(ns="ns2", ent="acme", role="org")
    spaced = {
        "spaces": json.dumps(forge.claims).encode(),
        "indented": json.dumps(forge.claims, indent=1).encode(),
        "a line after it": to_json(forge.claims) + b"\n",
        "a tab before it": b"\t" + to_json(forge.claims),
        "another order": to_json(dict(reversed(list(forge.claims.items())))),
        "escaped letters": to_json(forge.claims).replace(b"sluice", b"\\u0073luice"),
    }
    for name, text in spaced.items():
        yield f"claims with {name}", f"{header}.{segment(text)}.{signature}"
    claims = forge.good.split(".")[1]
    for name, text in {"spaces": json.dumps(forge.header).encode(), "a line": to_json(forge.header) + b"\n"}.items():
        yield f"a header with {name}", f"{segment(text)}.{claims}.{signature}"


def _signatures(forge: Forge) -> Iterator[Case]:
    signed, _, signature = forge.good.rpartition(".")
    for position, character in enumerate(signature):
        turned = _BASE64URL[(_BASE64URL.index(character) + 1) % 64]
        yield f"character {position}", f"{signed}.{signature[:position]}{turned}{signature[position + 1 :]}"
    for length in (0, 1, 2, 21, 22, 32, 40, 41, 42):
        yield f"the first {length}", f"{signed}.{signature[:length]}"
        yield f"the last {length}", f"{signed}.{signature[len(signature) - length :]}"
    for more in ("=", "==", "A", "AA", "AAAA", signature, ".", "\n", " "):
        yield f"and {more!r}", f"{signed}.{signature}{more}"
    mac = base64.urlsafe_b64decode(signature + "=")
    others = {
        "hex": mac.hex(),
        "zeros": segment(bytes(32)),
        "reversed": segment(mac[::-1]),
        "of nothing": segment(hmac.digest(forge.key, b"", "sha256")),
        "of the claims": segment(hmac.digest(forge.key, signed.partition(".")[2].encode(), "sha256")),
        "of the header": segment(hmac.digest(forge.key, signed.partition(".")[0].encode(), "sha256")),
        "cut to 128 bits": segment(mac[:16]),
        "and a byte": segment(mac + b"\0"),
        "in capitals": signature.swapcase(),
        "null": "null",
    }
    for name, other in others.items():
        yield name, f"{signed}.{other}"


def _spellings(forge: Forge) -> Iterator[Case]:
    """The same bytes in another spelling: a list of revoked tokens, or a cache, would take it for another token."""
    parts = forge.good.split(".")
    for index, name in enumerate(("header", "claims", "signature")):
        part = parts[index]
        raw = base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))
        spelled = {
            "padded": base64.urlsafe_b64encode(raw + b" " * (index < 2)).decode() + "=",
            "one =": part + "=",
            "two =": part + "==",
            "a line": part + "\n",
            "a line inside": part[:4] + "\n" + part[4:],
            "a space inside": part[:4] + " " + part[4:],
            "standard": base64.b64encode(raw + b"\xff\xfe\xfb").decode(),
            "a plus": "+" + part[1:],
            "a slash": part[:-1] + "/",
            "a percent": part + "%3D",
        }
        for how, other in spelled.items():
            yield f"{name}, {how}", ".".join([*parts[:index], other, *parts[index + 1 :]])
    # 43 characters carry 258 bits: the last two are of no use, and must be zero.
    last = _BASE64URL.index(forge.good[-1])
    for bits in (1, 2, 3):
        yield f"unused bits {bits}", forge.good[:-1] + _BASE64URL[last ^ bits]
    for before in (" ", "\t", "\n", "\0", "Bearer ", "bearer ", '"', "'", "\ufeff", ","):
        yield f"{before!r} before it", before + forge.good
    for after in (" ", "\t", "\n", "\r\n", "\0", "%00", '"', "'", ";", ",", f", Bearer {forge.good}", "#", "?a=b"):
        yield f"{after!r} after it", forge.good + after
    yield "in capitals", forge.good.upper()
    yield "percent escapes", forge.good.replace(".", "%2E")


def _forms(forge: Forge) -> Iterator[Case]:
    header, claims, signature = forge.good.split(".")
    yield "no claims", f"{header}..{signature}"
    yield "no header", f".{claims}.{signature}"
    yield "no signature", f"{header}.{claims}."
    yield "only dots", ".."
    yield "header alone", header
    yield "header and claims", f"{header}.{claims}"
    yield "four parts", f"{forge.good}.{signature}"
    yield "an empty fourth part", f"{forge.good}."
    yield "a JWE of five parts", f"{segment(to_json({'alg': 'dir', 'enc': 'A256GCM'}))}..{claims}.{claims}.{signature}"
    yield "five parts of ours", f"{forge.good}.{claims}.{signature}"
    yield "claims and header swapped", f"{claims}.{header}.{signature}"
    yield "a token in a token", forge.raw(to_json({**forge.header, "cty": "JWT"}), forge.good.encode())
    yield "a token in a token, unsaid", forge.raw(to_json(forge.header), forge.good.encode())
    yield "a token as JSON text in a token", forge.raw(to_json(forge.header), to_json(forge.good))
    yield "flattened JSON", to_json({"protected": header, "payload": claims, "signature": signature}).decode()
    for word in ("", " ", "null", "undefined", "true", "0", "Bearer", "{}", "[]", "a.b.c", "....", "-._-.-"):
        yield f"the word {word!r}", word


def _not_our_json(forge: Forge) -> Iterator[Case]:
    header, claims = to_json(forge.header), to_json(forge.claims)
    odd = {
        "an array": b"[" + claims + b"]",
        "a text": to_json(claims.decode()),
        "a number": b"1",
        "null": b"null",
        "nothing": b" ",
        "a byte order mark": b"\xef\xbb\xbf" + claims,
        "UTF-16": claims.decode().encode("utf-16"),
        "not UTF-8": claims[:-1] + b',"x":"\xff"}',
        "an overlong dot": claims[:-1] + b',"x":"\xc0\xae"}',
        "a comma too many": claims[:-1] + b",}",
        "a comment": claims[:-1] + b"/**/}",
        "quotes of one stroke": claims.replace(b'"', b"'"),
        "something after it": claims + b"{}",
        "a NUL after it": claims + b"\0",
        "half of it": claims[: len(claims) // 2],
        "deep arrays": b"[" * 2000 + b"]" * 2000,
        "deep objects": b'{"a":' * 400 + b"1" + b"}" * 400,
        "arrays that never end": b"[" * 2500,
        "a control character": claims.replace(b"chat", b"ch\x01at"),
    }
    for name, text in odd.items():
        yield f"claims: {name}", forge.raw(header, text)
        yield f"header: {name}", forge.raw(text.replace(claims, header), claims)


def _sizes(forge: Forge) -> Iterator[Case]:
    header, claims, signature = forge.good.split(".")
    megabyte = "A" * (1 << 20)
    yield "a megabyte", megabyte
    yield "a megabyte of dots", "." * (1 << 20)
    yield "a megabyte of claims", f"{header}.{megabyte}.{signature}"
    yield "a megabyte of header", f"{megabyte}.{claims}.{signature}"
    yield "a megabyte of signature", f"{header}.{claims}.{megabyte}"
    yield "a megabyte, signed", forge.with_claims(ent="e" * (1 << 20))
    long = forge.with_claims(ent="e" * 3000)
    yield f"{len(long)} characters, signed", long
    yield (
        "a number of 3000 digits",
        forge.raw(to_json(forge.header), to_json({**forge.claims, "exp": "@"}).replace(b'"@"', b"9" * 2400)),
    )


def _texts(forge: Forge) -> Iterator[Case]:
    header, claims, signature = forge.good.split(".")
    for name, odd in {
        "an accent": "é",
        "a lone surrogate": "\ud800",
        "a pair of surrogates": "\ud83d\ude00",
        "a wide letter": "\uff21",
        "a Cyrillic letter": "\u0430",
        "an invisible joiner": "\u200d",
        "a right-to-left mark": "\u202e",
        "an Arabic digit": "\u0661",
        "a NUL": "\0",
        "a delete": "\x7f",
    }.items():
        yield f"{name} at the front", odd + forge.good
        yield f"{name} at the end", forge.good + odd
        yield f"{name} in the claims", f"{header}.{odd}{claims[1:]}.{signature}"
        yield f"{name} as a token", odd * 50
    yield "a dot of another kind", forge.good.replace(".", "\u3002")
