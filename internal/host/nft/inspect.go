package nft

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Look is one look at the table, in which what all accounts share is read from
// the kernel once.
type Look struct {
	t    *Table
	mu   sync.Mutex
	done bool
	base []string
	err  error
}

// Look begins to look at the table.
func (t *Table) Look() *Look { return &Look{t: t} }

// Inspect reads the kernel's rules, sets and counters for one account and
// compares them with what was last applied. Nothing is taken from memory but
// the wish.
func (t *Table) Inspect(account string) (State, error) { return t.Look().Inspect(account) }

// Inspect is [Table.Inspect] within this look.
func (l *Look) Inspect(account string) (State, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	b, ok := l.t.binding(account)
	if !ok {
		return State{Difference: []string{"- no rules were applied for " + account}}, nil
	}
	if !l.done {
		l.base, l.err = l.t.compareBase()
		l.done = true
	}
	if l.err != nil {
		return State{}, l.err
	}
	s, err := l.t.inspectLocked(b)
	s.Difference = slices.Concat(l.base, s.Difference)
	s.InForce = len(s.Difference) == 0 && err == nil
	return s, err
}

// inspectLocked looks at the parts of one account only.
func (t *Table) inspectLocked(b Binding) (State, error) {
	var s State
	diff, rules, err := t.compareChain(b.Account)
	if err != nil {
		return s, err
	}
	s.Difference, s.Rules = diff, len(rules)
	for _, r := range rules {
		if rejects(r) {
			for _, e := range r.Exprs {
				if c, ok := e.(*expr.Counter); ok {
					s.Refused += c.Packets
				}
			}
		}
	}
	table := newTable()
	for _, v6 := range []bool{false, true} {
		elements, err := t.elementsOf(pinSet(table, b.Account, v6))
		if err != nil {
			return s, err
		}
		s.Pins += len(elements)
		flows, err := t.elementsOf(flowSet(table, b.Account, v6))
		if err != nil {
			return s, err
		}
		// An element that we did not put there opens a way: name it.
		for _, el := range slices.Concat(elements, flows) {
			if a, ok := keyAddress(el.Key); !ok || t.live[b.Account][a] == nil {
				s.Difference = append(s.Difference, fmt.Sprintf("+ %s: foreign element %s", b.Account, a))
			}
		}
	}
	return s, nil
}

// compareBase checks the table's flags, its chains, the base chain's hook and
// rules, and the two sets of ids.
func (t *Table) compareBase() ([]string, error) {
	tables, err := t.conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("nft: list tables: %w", err)
	}
	i := slices.IndexFunc(tables, func(x *nftables.Table) bool { return x.Name == Name })
	if i < 0 {
		return []string{"- table inet " + Name}, nil
	}
	var diff []string
	if tables[i].Flags != 0 { // we set none; the library gives them in the wrong byte order (v0.3.0)
		diff = append(diff, fmt.Sprintf("+ table inet %s has flags %#x: dormant or owned by somebody", Name, tables[i].Flags))
	}
	all, err := t.conn.ListChainsOfTableFamily(nftables.TableFamilyINet)
	if err != nil {
		return nil, fmt.Errorf("nft: list chains: %w", err)
	}
	var base string
	for _, c := range all {
		if c.Table.Name == Name && c.Name == baseChain {
			base = describeChain(c)
		}
	}
	if want := "type filter hook output priority 0 policy accept"; base != want {
		diff = append(diff, fmt.Sprintf("- chain %s: %s", baseChain, want), fmt.Sprintf("+ chain %s: %s", baseChain, base))
	}
	chains := []string{baseChain}
	if t.want.Resolver != nil {
		chains = append(chains, resolverChain)
	}
	if len(t.want.Servers) > 0 {
		chains = append(chains, serversChain)
	}
	for _, c := range chains {
		d, _, err := t.compareChain(c)
		if err != nil {
			return nil, err
		}
		diff = append(diff, d...)
	}
	table := newTable()
	sets := map[*nftables.Set][]nftables.SetElement{
		dialerMap(table):  dialerElements(t.want),
		refusedIDs(table): rangeElements(t.want.ranges()),
	}
	if r := t.want.Resolver; r != nil {
		for _, v6 := range []bool{false, true} {
			sets[resolverServers(table, v6)] = serverElements(r, v6)
		}
	}
	for set, want := range sets {
		var got []nftables.SetElement
		if set.IsMap {
			got, err = t.rawVerdicts(set.Name)
		} else {
			got, err = t.elementsOf(set)
		}
		if err != nil {
			return nil, err
		}
		diff = append(diff, difference("set "+set.Name, describeElements(want), describeElements(got), false)...)
	}
	return diff, nil
}

// compareChain reads one chain's rules. A chain that is gone has none.
func (t *Table) compareChain(chain string) ([]string, []*nftables.Rule, error) {
	table := newTable()
	rules, err := t.conn.GetRules(table, &nftables.Chain{Name: chain, Table: table})
	if err != nil && !errors.Is(err, os.ErrNotExist) && !missing(err) {
		return nil, nil, fmt.Errorf("nft: read chain %s: %w", chain, err)
	}
	var want, got []string
	for _, r := range t.rules[chain] {
		want = append(want, describe(r.exprs, names(r.exprs)))
	}
	raw, err := t.rawNames(chain)
	if err != nil {
		return nil, nil, err
	}
	for _, r := range rules {
		got = append(got, describe(r.Exprs, raw[r.Handle]))
	}
	return difference("chain "+chain, want, got, true), rules, nil
}

func (t *Table) elementsOf(set *nftables.Set) ([]nftables.SetElement, error) {
	elements, err := t.conn.GetSetElements(set)
	if err != nil && !errors.Is(err, os.ErrNotExist) && !missing(err) {
		return nil, fmt.Errorf("nft: read set %s: %w", set.Name, err)
	}
	return elements, nil
}

// missing finds ENOENT in errors that the library flattened to text.
func missing(err error) bool {
	return err != nil && bytes.Contains([]byte(err.Error()), []byte(unix.ENOENT.Error()))
}

func rejects(r *nftables.Rule) bool {
	return slices.ContainsFunc(r.Exprs, func(e expr.Any) bool { _, ok := e.(*expr.Reject); return ok })
}

// difference compares two lists; ordered ones must agree in order too.
func difference(where string, want, got []string, ordered bool) []string {
	if !ordered {
		want, got = slices.Sorted(slices.Values(want)), slices.Sorted(slices.Values(got))
	}
	if slices.Equal(want, got) {
		return nil
	}
	var out []string
	for _, w := range want {
		if !slices.Contains(got, w) {
			out = append(out, "- "+where+": "+w)
		}
	}
	for _, g := range got {
		if !slices.Contains(want, g) {
			out = append(out, "+ "+where+": "+g)
		}
	}
	if out == nil {
		out = []string{"- " + where + ": order or number of its entries differs"}
	}
	return out
}

func describeElements(elements []nftables.SetElement) []string {
	var out []string
	for _, e := range elements {
		s := fmt.Sprintf("%x", e.Key)
		if e.IntervalEnd {
			s += " end"
		} else if e.VerdictData != nil {
			s += fmt.Sprintf(" verdict %d %s", e.VerdictData.Kind, e.VerdictData.Chain)
		}
		out = append(out, s)
	}
	// The kernel marks where the first interval starts with an end at zero.
	return slices.DeleteFunc(out, func(s string) bool { return s == "00000000 end" })
}

func describeChain(c *nftables.Chain) string {
	if c.Hooknum == nil || c.Priority == nil || c.Policy == nil {
		return "not a base chain"
	}
	hook, policy := fmt.Sprint(*c.Hooknum), "drop"
	if *c.Hooknum == *nftables.ChainHookOutput {
		hook = "output"
	}
	if *c.Policy == nftables.ChainPolicyAccept {
		policy = "accept"
	}
	return fmt.Sprintf("type %s hook %s priority %d policy %s", c.Type, hook, *c.Priority, policy)
}

// describe writes a rule as text, without its counters' values. Two rules with
// the same text do the same; an expression that we never use stands out.
// names are the kernel's names of the rule's expressions, in order: the library
// leaves out of exprs what it cannot read, and that must not stay unseen.
func describe(exprs []expr.Any, names []string) string {
	var b bytes.Buffer
	b.WriteString(strings.Join(names, " ") + ": ")
	for _, e := range exprs {
		switch e := e.(type) {
		case *expr.Meta:
			fmt.Fprintf(&b, "meta %d -> %d", e.Key, register(e.Register))
		case *expr.Cmp:
			fmt.Fprintf(&b, "cmp %d op %d %x", register(e.Register), e.Op, e.Data)
		case *expr.Payload:
			fmt.Fprintf(&b, "payload %d+%d/%d -> %d", e.Base, e.Offset, e.Len, register(e.DestRegister))
		case *expr.Bitwise:
			fmt.Fprintf(&b, "bitwise %d & %x ^ %x -> %d", register(e.SourceRegister), e.Mask, e.Xor, register(e.DestRegister))
		case *expr.Byteorder: // the library writes it but does not read it; its name is in names
			continue
		case *expr.Lookup:
			fmt.Fprintf(&b, "lookup %d in %s map %t invert %t", register(e.SourceRegister), e.SetName, e.IsDestRegSet, e.Invert)
		case *expr.Counter:
			b.WriteString("counter")
		case *expr.Reject:
			fmt.Fprintf(&b, "reject %d/%d", e.Type, e.Code)
		case *expr.Verdict:
			fmt.Fprintf(&b, "verdict %d %s", e.Kind, e.Chain)
		default:
			fmt.Fprintf(&b, "%T", e)
		}
		b.WriteString("; ")
	}
	return b.String()
}

// register gives the 128-bit registers (1 to 4) the numbers of the 32-bit ones
// that share their storage: the kernel may answer with either.
func register(r uint32) uint32 {
	if r >= unix.NFT_REG_1 && r <= unix.NFT_REG_4 {
		return unix.NFT_REG32_00 + (r-1)*4
	}
	return r
}
