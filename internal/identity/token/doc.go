// Package token makes and checks the tokens of control: who a caller speaks
// as, and by how much it is narrowed below that agent's manifest.
//
// # What it keeps
//
// A token is a JWS in compact form (RFC 7515) whose payload are the [Claims].
// Who checks one decides by the key id alone which key and which algorithm
// count: neither comes from the token. EdDSA is what control signs with unless
// asked otherwise, RS256 is there for clients that know nothing else, and
// HS256 has one key per agent: whoever can check such a token can make one, so
// its secret is with control and front, never with a gateway. A gateway takes
// front's word for the signature ([Config.Vouched]) and checks all the rest.
//
// # What it refuses
//
// Before any signature is looked at: more than [MaxSize] bytes, any character
// that is not base64url or one of two dots, base64 that is not canonical, a
// header with any member but alg, kid and typ (so no jwk, jku, x5u, x5c, crit,
// b64, zip), a member given twice or in another case, an unknown claim, numbers
// that are not plain integers, a life of more than [MaxLife]. Then: an unknown,
// ended or foreign key, another algorithm than the key's, a wrong signature.
// Then: another audience, team or agent, not valid yet, expired, revoked, or
// newer than what the verifier was told ([Trust.Epoch]).
//
// # Revocation
//
// A [Trust] lists keys and revoked ids as of an epoch, which grows with every
// change. A [Verifier] that was not told again within [Config.MaxAge] refuses
// every token: what it does not hear of it cannot refuse one by one.
//
// It does not keep who may ask for a token, nor signing keys on disk: see
// internal/control.
package token
