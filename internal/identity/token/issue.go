package token

import (
	"fmt"

	"github.com/golang-jwt/jwt/v5"
)

// Issue signs claims. What a verifier would refuse for its form is not signed.
func (s *Signer) Issue(c Claims) (string, error) {
	c.Audience = Audience
	if err := c.check(); err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	if s.Alg == HS256 && (c.Team != s.Team || c.Agent != s.Agent) {
		return "", fmt.Errorf("token: key %s signs for %s/%s alone", s.ID, s.Team, s.Agent)
	}
	t := jwt.NewWithClaims(method(s.Alg), &c)
	t.Header["kid"] = s.ID
	out, err := t.SignedString(s.private)
	if err != nil {
		return "", fmt.Errorf("token: %w", err)
	}
	if len(out) > MaxSize {
		return "", fmt.Errorf("token: it would have %d bytes, more than %d: narrow it to fewer domains", len(out), MaxSize)
	}
	return out, nil
}

func method(a Alg) jwt.SigningMethod {
	switch a {
	case EdDSA:
		return jwt.SigningMethodEdDSA
	case RS256:
		return jwt.SigningMethodRS256
	case HS256:
		return jwt.SigningMethodHS256
	}
	return nil
}
