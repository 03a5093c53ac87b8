package token

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/golang-jwt/jwt/v5"
)

// Audience is whom tokens are for: gateways of this product, and front before
// them. Which host it is follows from the key.
const Audience = "bulkhead"

// Bounds of a token.
const (
	MaxSize     = 8 << 10 // bytes, in compact form
	DefaultLife = 30 * 24 * time.Hour
	MaxLife     = 366 * 24 * time.Hour
	maxName     = 64 // bytes of sub, team and jti
	maxDomains  = 64
	maxDomain   = 255 // bytes; 253 of a name, and "*."
)

// Quotas narrow what the manifest gives; 0: the manifest alone decides.
type Quotas struct {
	StorageBytes  int64 `json:"storageQuotaBytes,omitempty"`
	MemoryBytes   int64 `json:"memoryQuotaBytes,omitempty"`
	RatePerMinute int   `json:"rateLimitPerMin,omitempty"`
}

// Claims are what a token says. Times are Unix seconds.
type Claims struct {
	Agent    string `json:"sub"`
	Team     string `json:"team"`
	Audience string `json:"aud"`
	// Domains narrow which hosts net tools may reach, below the manifest. Nil:
	// the manifest alone decides. Empty: none.
	Domains   *[]string `json:"allowedDomains,omitempty"`
	Quotas    Quotas    `json:"quotas"`
	Expires   int64     `json:"exp"`
	NotBefore int64     `json:"nbf"`
	IssuedAt  int64     `json:"iat"`
	ID        string    `json:"jti"`
	// Epoch is that of the [Trust] in force when the token was made.
	Epoch uint64 `json:"epoch"`
	// Key is the id of the key that it was verified with; no claim of the token.
	Key string `json:"-"`
}

// Allowed gives Domains as the tools take it: nil when nothing is narrowed.
func (c *Claims) Allowed() []string {
	if c.Domains == nil {
		return nil
	}
	return append([]string{}, *c.Domains...)
}

// check refuses claims that no token may carry, whoever signed it.
func (c *Claims) check() error {
	switch {
	case c.Agent == "":
		return errors.New("sub is empty")
	case c.Team == "":
		return errors.New("team is empty")
	case c.ID == "":
		return errors.New("jti is empty")
	case len(c.Agent) > maxName || len(c.Team) > maxName || len(c.ID) > maxName:
		return fmt.Errorf("sub, team or jti has more than %d bytes", maxName)
	case c.IssuedAt <= 0 || c.NotBefore < c.IssuedAt || c.Expires <= c.NotBefore:
		return errors.New("iat, nbf and exp are not in this order")
	case c.Expires-c.IssuedAt > int64(MaxLife/time.Second):
		return fmt.Errorf("it would live for more than %s", MaxLife)
	case c.Quotas.StorageBytes < 0 || c.Quotas.MemoryBytes < 0 || c.Quotas.RatePerMinute < 0:
		return errors.New("a quota is negative")
	case c.Domains != nil && len(*c.Domains) > maxDomains:
		return fmt.Errorf("allowedDomains has more than %d names", maxDomains)
	case c.Domains != nil && slices.ContainsFunc(*c.Domains, func(d string) bool { return d == "" || len(d) > maxDomain }):
		return fmt.Errorf("a name of allowedDomains is empty, or longer than %d bytes", maxDomain)
	}
	return nil
}

// The getters of jwt.Claims, so that its validator checks the times and the
// audience.

// GetExpirationTime implements jwt.Claims.
func (c *Claims) GetExpirationTime() (*jwt.NumericDate, error) { return date(c.Expires), nil }

// GetIssuedAt implements jwt.Claims.
func (c *Claims) GetIssuedAt() (*jwt.NumericDate, error) { return date(c.IssuedAt), nil }

// GetNotBefore implements jwt.Claims.
func (c *Claims) GetNotBefore() (*jwt.NumericDate, error) { return date(c.NotBefore), nil }

// GetIssuer implements jwt.Claims: the key says who issued it.
func (c *Claims) GetIssuer() (string, error) { return "", nil }

// GetSubject implements jwt.Claims.
func (c *Claims) GetSubject() (string, error) { return c.Agent, nil }

// GetAudience implements jwt.Claims.
func (c *Claims) GetAudience() (jwt.ClaimStrings, error) { return jwt.ClaimStrings{c.Audience}, nil }

func date(seconds int64) *jwt.NumericDate { return jwt.NewNumericDate(time.Unix(seconds, 0)) }
