package token

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"bulkhead/internal/deny"
)

// DefaultMaxAge is how long a verifier believes what it was told.
const DefaultMaxAge = 30 * time.Second

// TrustVersion is the version of a [Trust] as JSON.
const TrustVersion = 1

// Trust is what a verifier is told: which keys count, and which tokens do not.
type Trust struct {
	Version int `json:"version"`
	// Epoch grows with every change, and never falls.
	Epoch   uint64   `json:"epoch"`
	Keys    []Key    `json:"keys"`
	Revoked []string `json:"revoked,omitempty"` // ids that have not expired
}

// Config is one verifier.
type Config struct {
	// Team and Agent are the ones whose tokens are taken. Empty: anybody's, which
	// is front's way.
	Team, Agent string
	// Vouched takes the caller's word for the signature of HS256 keys that have
	// no secret here. Set only where the kernel says that front is calling.
	Vouched bool
	MaxAge  time.Duration    // 0: DefaultMaxAge
	Now     func() time.Time // for tests; nil: time.Now
}

// Verifier checks tokens. Until it is told a [Trust] it refuses all.
type Verifier struct {
	cfg Config

	mu      sync.RWMutex // guards what follows
	told    time.Time    // with the monotonic clock: setting the clock back renews nothing
	epoch   uint64
	keys    map[string]checked
	revoked map[string]bool
}

type checked struct {
	Key
	material any // nil: HS256 that front vouches for
}

// NewVerifier makes a verifier.
func NewVerifier(cfg Config) *Verifier {
	if cfg.MaxAge == 0 {
		cfg.MaxAge = DefaultMaxAge
	}
	if cfg.Now == nil {
		cfg.Now = time.Now
	}
	return &Verifier{cfg: cfg}
}

// ErrStale says that a Trust is older than the one in force.
var ErrStale = errors.New("token: it is of an older epoch than what is known already")

// Refresh takes a Trust as of now. One that is not whole changes nothing.
func (v *Verifier) Refresh(t Trust) error {
	if t.Version != TrustVersion {
		return fmt.Errorf("token: version %d of what is trusted, not %d", t.Version, TrustVersion)
	}
	keys := make(map[string]checked, len(t.Keys))
	for _, k := range t.Keys {
		if _, twice := keys[k.ID]; twice {
			return fmt.Errorf("token: two keys are named %.64q", k.ID)
		}
		if k.Alg == HS256 && len(k.Secret) == 0 {
			if k.Team == "" || k.Agent == "" || k.ID == "" {
				return fmt.Errorf("token: HS256 key %.64q is nobody's", k.ID)
			}
			keys[k.ID] = checked{Key: k}
			continue
		}
		m, err := k.material()
		if err != nil {
			return err
		}
		keys[k.ID] = checked{Key: k, material: m}
	}
	revoked := make(map[string]bool, len(t.Revoked))
	for _, id := range t.Revoked {
		revoked[id] = true
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if t.Epoch < v.epoch {
		return ErrStale
	}
	v.told, v.epoch, v.keys, v.revoked = v.cfg.Now(), t.Epoch, keys, revoked
	return nil
}

// Forget refuses all until the next Refresh.
func (v *Verifier) Forget() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.told = time.Time{}
}

// Verify gives the claims of a token that counts now. The reason never holds
// the token.
func (v *Verifier) Verify(text string) (*Claims, *deny.Reason) {
	c, err := v.verify(text)
	if err == nil {
		return c, nil
	}
	r := &deny.Reason{
		Layer: deny.LayerTools, Code: deny.BadToken, What: "a token", Why: err.Error(),
		Mend: "get a new one with `bulkhead token issue AGENT`, and send it as `Authorization: Bearer`",
	}
	if errors.Is(err, ErrNotTold) {
		r.Why, r.Mend, r.RetryAfter = err.Error(), "try again; if it stays so, look at `bulkhead status`: control or the warden is away", 1
	}
	return nil, r
}

// ErrNotTold says that a verifier does not know at the moment what is revoked.
var ErrNotTold = errors.New("what is revoked is not known at the moment, so no token is taken")

func (v *Verifier) verify(text string) (*Claims, error) {
	h, c, err := read(text)
	if err != nil {
		return nil, err
	}
	v.mu.RLock()
	told, epoch := v.told, v.epoch
	key, known := v.keys[h.Kid]
	revoked := v.revoked[c.ID]
	v.mu.RUnlock()
	now := v.cfg.Now()
	switch age := now.Sub(told); {
	case told.IsZero() || age > v.cfg.MaxAge:
		return nil, ErrNotTold
	case !known:
		return nil, errors.New("its key is not known")
	case key.over(now):
		return nil, errors.New("its key was replaced, and the overlap is over")
	case h.Alg != string(key.Alg):
		return nil, errors.New("its algorithm is not its key's")
	}
	if err := v.signature(text, key, now); err != nil {
		return nil, err
	}
	switch {
	case key.Alg == HS256 && (c.Team != key.Team || c.Agent != key.Agent):
		return nil, errors.New("its key is another agent's")
	case v.cfg.Team != "" && c.Team != v.cfg.Team:
		return nil, errors.New("it is for another team")
	case v.cfg.Agent != "" && c.Agent != v.cfg.Agent:
		return nil, errors.New("it is for another agent")
	case revoked:
		return nil, errors.New("it is revoked")
	case c.Epoch > epoch:
		return nil, ErrNotTold // it is newer than what this verifier heard
	}
	c.Key = h.Kid
	return &c, nil
}

// Still says whether a token that was verified before, and is not at hand any
// more, would still be taken: nil, [ErrNotTold], or why it is over.
func (v *Verifier) Still(id, key string, expires int64) error {
	v.mu.RLock()
	told, k, revoked := v.told, v.keys[key], v.revoked[id]
	_, known := v.keys[key]
	v.mu.RUnlock()
	now := v.cfg.Now()
	switch age := now.Sub(told); {
	case now.Unix() >= expires: // what is expired is forgotten by whoever knew that it was revoked
		return errors.New("it is expired")
	case told.IsZero() || age > v.cfg.MaxAge:
		return ErrNotTold
	case !known:
		return errors.New("its key is not known")
	case k.over(now):
		return errors.New("its key was replaced, and the overlap is over")
	case revoked:
		return errors.New("it is revoked")
	}
	return nil
}

// signature checks the signature with the key's own algorithm, the times and
// the audience.
func (v *Verifier) signature(text string, key checked, now time.Time) error {
	p := jwt.NewParser(
		jwt.WithValidMethods([]string{string(key.Alg)}), jwt.WithStrictDecoding(), jwt.WithAudience(Audience),
		jwt.WithExpirationRequired(), jwt.WithNotBeforeRequired(), jwt.WithIssuedAt(), jwt.WithTimeFunc(func() time.Time { return now }),
	)
	var c Claims
	var err error
	if key.material == nil {
		if !v.cfg.Vouched {
			return errors.New("tokens of its algorithm are taken through front alone")
		}
		if _, _, err = p.ParseUnverified(text, &c); err == nil {
			err = jwt.NewValidator(
				jwt.WithAudience(Audience), jwt.WithExpirationRequired(), jwt.WithNotBeforeRequired(), jwt.WithIssuedAt(),
				jwt.WithTimeFunc(func() time.Time { return now }),
			).Validate(&c)
		}
	} else {
		_, err = p.ParseWithClaims(text, &c, func(*jwt.Token) (any, error) { return key.material, nil })
	}
	for _, one := range []struct {
		is  error
		say string
	}{
		{jwt.ErrTokenSignatureInvalid, "its signature is not its key's"},
		{jwt.ErrTokenExpired, "it is expired"},
		{jwt.ErrTokenNotValidYet, "it is not valid yet"},
		{jwt.ErrTokenUsedBeforeIssued, "it is not valid yet"},
		{jwt.ErrTokenInvalidAudience, "it is for another audience"},
		{jwt.ErrTokenRequiredClaimMissing, "it is for another audience"},
	} {
		if errors.Is(err, one.is) {
			return errors.New(one.say)
		}
	}
	if err != nil {
		return errors.New("it does not parse")
	}
	return nil
}

// Epoch is that of the trust in force.
func (v *Verifier) Epoch() uint64 {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.epoch
}

// For gives what a gateway is told of t: no secret of HS256, and of HS256 keys
// its own agent's alone.
func (t Trust) For(team, agent string) Trust {
	t.Keys = slices.Clone(t.Keys)
	t.Keys = slices.DeleteFunc(t.Keys, func(k Key) bool { return k.Alg == HS256 && (k.Team != team || k.Agent != agent) })
	for i := range t.Keys {
		t.Keys[i].Secret = nil
	}
	return t
}
