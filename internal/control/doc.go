// Package control issues the tokens that callers show to gateways, and says
// which count.
//
// It runs as an account of its own in a cell without a network. Only root
// speaks to it, over one socket (internal/hub): operators through the warden.
// It has no gateways as peers: the warden asks it every few seconds what is to
// be trusted, and passes the answer on unread (docs/decisions/0070).
//
// # On disk
//
// Below its data folder, mode 0700, its own:
//
//	keys/<kid>.json   one signing key each, mode 0600, replaced by rename
//	tokens.jsonl      what was issued and revoked, one JSON line each
//
// A line is synced before anybody is answered. A torn last line was not
// answered, and is cut off when the file is opened; a line that does not parse
// anywhere else is corruption, and control does not start: to forget a
// revocation would open what was closed. Tokens themselves are never kept, only
// their ids and what they allow. Lines of expired tokens are dropped at a start
// once they are the most.
//
// The epoch is in the file and grows with every revocation and rotation, before
// its effect. Gateways refuse an older epoch than they know: a data folder that
// was put back from a backup is noticed.
package control
