package control

import (
	"crypto/rand"
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"bulkhead/internal/control/protocol"
	"bulkhead/internal/hub"
	"bulkhead/internal/identity/token"
)

// MaxOverlap bounds a rotation: no token lives longer.
const MaxOverlap = token.MaxLife

// Control is an open data folder.
type Control struct {
	now    func() time.Time
	admins *admins

	mu   sync.Mutex // guards what follows
	book *book
	ring *ring
}

// Open opens the data folder, with a first key in it.
// Agents may be made for admins.
func Open(data string, now func() time.Time, admins ...protocol.Admin) (*Control, error) {
	if now == nil {
		now = time.Now
	}
	b, err := openBook(filepath.Join(data, "tokens.jsonl"), now())
	if err != nil {
		return nil, err
	}
	c := &Control{now: now, book: b}
	if c.admins, err = newAdmins(admins, now); err != nil {
		return nil, errors.Join(err, b.close())
	}
	if c.ring, err = openRing(filepath.Join(data, "keys"), now()); err == nil && c.ring.use(token.EdDSA, "", "") == nil {
		_, err = c.newKey(token.EdDSA, "", "")
	}
	if err != nil {
		return nil, errors.Join(err, b.close())
	}
	return c, nil
}

// Close lets go of the folder.
func (c *Control) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.book.close()
}

// newKey makes a key in an epoch of its own, so that who was not told of it
// says that rather than that the key is unknown.
func (c *Control) newKey(alg token.Alg, team, agent string) (*signer, error) {
	if err := c.book.write(line{Op: opEpoch, Epoch: c.book.epoch + 1}); err != nil {
		return nil, err
	}
	return c.ring.make(alg, team, agent, c.now().UTC())
}

// Issue makes a token. It is on record before it is given.
func (c *Control) Issue(q protocol.Issue) (*protocol.Issued, error) {
	if q.For == 0 {
		q.For = token.DefaultLife
	}
	if q.For < time.Second || q.For > token.MaxLife {
		return nil, hub.BadInput(fmt.Sprintf("a token cannot live for %s", q.For), fmt.Sprintf("say --for with a second to %s", token.MaxLife))
	}
	if q.Alg == "" {
		q.Alg = string(token.EdDSA)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now().UTC().Truncate(time.Second)
	c.book.forget(now)
	if len(c.book.tokens) >= maxLive {
		return nil, hub.BadInput(fmt.Sprintf("%d tokens are alive already", maxLive), "let them live shorter (--for); those that are revoked go when they expire")
	}
	alg := token.Alg(q.Alg)
	switch alg {
	case token.EdDSA, token.RS256, token.HS256:
	default:
		return nil, hub.BadInput(fmt.Sprintf("there is no algorithm %.20q", q.Alg), "say --alg EdDSA, RS256 or HS256")
	}
	key := c.ring.use(alg, q.Team, q.Agent)
	if key == nil {
		var err error
		team, agent := "", ""
		if alg == token.HS256 {
			team, agent = q.Team, q.Agent
		}
		if key, err = c.newKey(alg, team, agent); err != nil {
			return nil, err
		}
	}
	id := rand.Text()
	expires := now.Add(q.For).Truncate(time.Second)
	text, err := key.Issue(token.Claims{
		Agent: q.Agent, Team: q.Team, ID: id, Domains: q.Domains, Epoch: c.book.epoch,
		Quotas:  token.Quotas{StorageBytes: q.Storage, MemoryBytes: q.Memory, RatePerMinute: q.Rate},
		Expires: expires.Unix(), NotBefore: now.Unix(), IssuedAt: now.Unix(),
	})
	if err != nil {
		return nil, hub.BadInput(err.Error(), "change what the token is for")
	}
	if err := c.book.write(line{Op: opIssue, Token: &protocol.Token{
		ID: id, Team: q.Team, Agent: q.Agent, Key: key.ID, Alg: q.Alg, Issued: now, Expires: expires, Domains: q.Domains, Rate: q.Rate,
		Storage: q.Storage, Memory: q.Memory, By: q.By,
	}}); err != nil {
		return nil, err
	}
	return &protocol.Issued{SchemaVersion: 1, Token: text, ID: id, Team: q.Team, Agent: q.Agent, Alg: q.Alg, Expires: expires}, nil
}

// List gives tokens that have not expired, oldest first.
func (c *Control) List(q protocol.List) *protocol.Tokens {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.forget(c.now())
	out := &protocol.Tokens{SchemaVersion: 1, Epoch: c.book.epoch, Tokens: []protocol.Token{}}
	for _, t := range c.book.sorted() {
		if (q.Team == "" || t.Team == q.Team) && (q.Agent == "" || t.Agent == q.Agent) && (q.All || t.Revoked == nil) {
			out.Tokens = append(out.Tokens, *t)
		}
	}
	return out
}

// Revoke ends tokens as of a new epoch. One that is revoked already is no fault.
func (c *Control) Revoke(q protocol.Revoke) (*protocol.Revoked, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.book.forget(c.now())
	out := &protocol.Revoked{SchemaVersion: 1, IDs: []string{}}
	var todo []string
	for _, t := range c.book.sorted() {
		if q.ID != "" && t.ID != q.ID || q.ID == "" && (q.Agent == "" || t.Agent != q.Agent || t.Team != q.Team) {
			continue
		}
		out.IDs = append(out.IDs, t.ID)
		if t.Revoked == nil {
			todo = append(todo, t.ID)
		}
	}
	if q.ID != "" && len(out.IDs) == 0 {
		return nil, hub.BadInput(fmt.Sprintf("there is no token %.64q, or it has expired", q.ID), "`bulkhead token list` shows those that there are")
	}
	if len(todo) > 0 {
		if err := c.book.write(line{Op: opRevoke, IDs: todo, At: c.now().UTC(), Epoch: c.book.epoch + 1}); err != nil {
			return nil, err
		}
	}
	out.Epoch = c.book.epoch
	return out, nil
}

// Rotate makes a new key for each that signs. The former ones' tokens end with
// the overlap.
func (c *Control) Rotate(q protocol.Rotate) (*protocol.Rotated, error) {
	if q.Overlap < 0 || q.Overlap > MaxOverlap {
		return nil, hub.BadInput(fmt.Sprintf("%s is no overlap", q.Overlap), fmt.Sprintf("say --overlap with 0 to %s", MaxOverlap))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.now().UTC()
	out := &protocol.Rotated{SchemaVersion: 1, Keys: []string{}, Former: []string{}, Until: now.Add(q.Overlap).Truncate(time.Second)}
	var former, live []*signer
	for _, s := range c.ring.keys {
		if s.Until == 0 {
			former = append(former, s)
		} else if s.Until > out.Until.Unix() {
			live = append(live, s) // of an earlier rotation, with a longer overlap
		}
	}
	if q.Overlap > 0 {
		live = nil // only an end at once takes back what was promised
	}
	made := map[string]bool{}
	for _, s := range former {
		key := string(s.Alg) + "\x00" + s.Team + "\x00" + s.Agent
		if made[key] {
			continue // a rotation that was cut short left two
		}
		made[key] = true
		next, err := c.newKey(s.Alg, s.Team, s.Agent)
		if err != nil {
			return nil, err
		}
		out.Keys = append(out.Keys, next.ID)
	}
	for _, s := range append(former, live...) {
		if err := c.ring.retire(s, out.Until); err != nil {
			return nil, err
		}
		out.Former = append(out.Former, s.ID)
	}
	// The end is news of its own: what was told between the new key and this
	// does not know of it.
	if err := c.book.write(line{Op: opEpoch, Epoch: c.book.epoch + 1}); err != nil {
		return nil, err
	}
	out.Epoch = c.book.epoch
	return out, c.ring.forget(c.now())
}
