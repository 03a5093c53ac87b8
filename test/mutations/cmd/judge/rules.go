package main

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"

	"bulkhead/internal/prove"
	"bulkhead/test/mutations"
)

// rules takes each rule, and each entry by which ids are found, out of the
// loaded table. It answers for those alone that widen what is let out: without
// the others less is, or another rule refuses the same.
func (j *judge) rules(ctx context.Context) ([]mutations.Noticed, error) {
	listed, err := exec.CommandContext(ctx, "nft", "-a", "list", "table", "inet", "bulkhead").Output()
	if err != nil {
		return nil, fmt.Errorf("nft: %w", err)
	}
	var out []mutations.Noticed
	chain := ""
	for line := range strings.Lines(string(listed)) {
		if m := regexp.MustCompile(`^\s*chain (\S+) \{`).FindStringSubmatch(line); m != nil {
			chain = m[1]
		}
		m := regexp.MustCompile(`^\s+(.*) # handle (\d+)$`).FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil || chain == "" || strings.HasPrefix(m[1], "chain ") || strings.HasPrefix(m[1], "set ") || strings.HasPrefix(m[1], "map ") {
			continue
		}
		text := regexp.MustCompile(`counter packets \d+ bytes \d+`).ReplaceAllString(m[1], "counter")
		n, err := j.without(ctx, "rule in "+chain+": "+text, "delete", "rule", "inet", "bulkhead", chain, "handle", m[2])
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	ids := agent.IDs
	for _, e := range []struct {
		what string
		args []string
	}{
		{"the account is in the set of refused ids", []string{"delete", "element", "inet", "bulkhead", "refused", fmt.Sprintf("{ %d }", ids.Account)}},
		{"the range of ids is in the set of refused ids", []string{"delete", "element", "inet", "bulkhead", "refused", fmt.Sprintf("{ %d-%d }", ids.Base, ids.Last())}},
		{"the dialer is in the map of chains", []string{"delete", "element", "inet", "bulkhead", "dialers", fmt.Sprintf("{ %d }", ids.Dialer)}},
		{"a server without a network is in the set of refused ids", []string{"delete", "element", "inet", "bulkhead", "refused", fmt.Sprintf("{ %d }", quiet.IDs.Account)}},
		{"a server that listens is in the map of chains", []string{"delete", "element", "inet", "bulkhead", "dialers", fmt.Sprintf("{ %d }", front.IDs.Account)}},
		{"no pin but those of the manifest is in its set", []string{"add", "element", "inet", "bulkhead", agent.Account + ".pins4", "{ 203.0.113.11 . 443 timeout 1m }"}},
	} {
		n, err := j.without(ctx, e.what, e.args...)
		if err != nil {
			return nil, err
		}
		out = append(out, n)
	}
	return out, nil
}

// without changes the table, has the statements made, and loads it again.
func (j *judge) without(ctx context.Context, what string, nftArgs ...string) (mutations.Noticed, error) {
	n := mutations.Noticed{ID: "nft: " + strings.NewReplacer(agent.Account, "ACCOUNT", fmt.Sprint(front.IDs.Account), "FRONT").Replace(what), Verify: []string{}, Prove: []string{}}
	var errs bytes.Buffer
	c := exec.CommandContext(ctx, "nft", nftArgs...) // #nosec G204 -- in a throwaway host
	c.Stderr = &errs
	if err := c.Run(); err != nil {
		return n, fmt.Errorf("nft %v: %w: %s", nftArgs, err, errs.String())
	}
	r, err := prove.Team(ctx, prove.Request{Team: "mutant", Table: "bulkhead", Agents: []prove.Agent{agent, front, quiet}})
	if err != nil {
		return n, err
	}
	for _, s := range r.Statements {
		if strings.HasPrefix(s.ID, "egress.") && !s.Holds {
			n.Prove = append(n.Prove, s.ID)
		}
	}
	slices.Sort(n.Prove)
	n.Prove = slices.Compact(n.Prove)
	return n, j.table.Restore(ctx)
}
