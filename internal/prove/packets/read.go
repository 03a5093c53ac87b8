package packets

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// typeMask takes the flags from an attribute's type (NLA_TYPE_MASK).
const typeMask = 0x3fff

// Attributes that x/sys does not name (linux/netfilter/nf_tables.h).
const (
	ruleTable, ruleChain, ruleHandle, ruleExprs = 1, 2, 3, 4
	elemKeyEnd                                  = 10 // NFTA_SET_ELEM_KEY_END
	tableDormant                                = 1  // NFT_TABLE_F_DORMANT
	chainFlags                                  = 10 // NFTA_CHAIN_FLAGS
)

// readTries is how often a ruleset is read that others change meanwhile.
const readTries = 10

// ErrChanging says that others changed the rules all the time.
var ErrChanging = errors.New("packets: the rules changed each time they were read")

// Read reads every table of this network namespace: one state, because it is
// read again until the kernel's generation stays the same meanwhile.
func Read() (*Ruleset, error) {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("packets: netlink: %w", err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetReadBuffer(4 << 20) // many elements come at once; the kernel's bound holds without
	for range readTries {
		before, err := generation(c)
		if err != nil {
			return nil, err
		}
		r, err := readOnce(c)
		after, err2 := generation(c)
		if err2 != nil {
			return nil, err2
		}
		if !bytes.Equal(before, after) {
			continue // also when an error came of it
		}
		return r, err
	}
	return nil, ErrChanging
}

// generation is a number that grows with each change of the rules.
func generation(c *netlink.Conn) ([]byte, error) {
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN), Flags: netlink.Request},
		Data:   []byte{unix.NFPROTO_UNSPEC, unix.NFNETLINK_V0, 0, 0},
	})
	if err != nil || len(msgs) == 0 {
		return nil, fmt.Errorf("packets: the rules' generation: %w", errors.Join(err, errNothing(msgs)))
	}
	at, err := attrs(msgs[0].Data, 4)
	if err != nil {
		return nil, err
	}
	return at[1], nil // NFTA_GEN_ID
}

func errNothing(msgs []netlink.Message) error {
	if len(msgs) == 0 {
		return errors.New("the kernel answered nothing")
	}
	return nil
}

func readOnce(c *netlink.Conn) (*Ruleset, error) {
	r := &Ruleset{}
	steps := []struct {
		kind uint16
		add  func(Family, attributes) error
	}{
		{unix.NFT_MSG_GETTABLE, r.addTable},
		{unix.NFT_MSG_GETCHAIN, r.addChain},
		{unix.NFT_MSG_GETRULE, r.addRule},
		{unix.NFT_MSG_GETSET, r.addSet},
	}
	for _, s := range steps {
		if err := dump(c, s.kind, unix.NFPROTO_UNSPEC, nil, s.add); err != nil {
			return nil, err
		}
	}
	for _, t := range r.Tables {
		for _, s := range t.Sets {
			body, err := netlink.MarshalAttributes([]netlink.Attribute{
				{Type: unix.NFTA_SET_ELEM_LIST_TABLE, Data: []byte(t.Name + "\x00")},
				{Type: unix.NFTA_SET_ELEM_LIST_SET, Data: []byte(s.Name + "\x00")},
			})
			if err != nil {
				return nil, fmt.Errorf("packets: set %s: %w", s.Name, err)
			}
			if err := dump(c, unix.NFT_MSG_GETSETELEM, byte(t.Family), body, s.addElements); err != nil {
				return nil, fmt.Errorf("packets: set %s of table %s: %w", s.Name, t, err)
			}
			if err := s.close(); err != nil {
				return nil, fmt.Errorf("packets: set %s of table %s: %w", s.Name, t, err)
			}
		}
	}
	return r, nil
}

func dump(c *netlink.Conn, kind uint16, family byte, body []byte, add func(Family, attributes) error) error {
	msgs, err := c.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{family, unix.NFNETLINK_V0, 0, 0}, body...),
	})
	if err != nil {
		return fmt.Errorf("packets: dump %d: %w", kind, err)
	}
	for _, m := range msgs {
		if len(m.Data) < 4 {
			return errShort
		}
		at, err := attrs(m.Data, 4)
		if err != nil {
			return err
		}
		if err := add(Family(m.Data[0]), at); err != nil {
			return err
		}
	}
	return nil
}

var errShort = errors.New("packets: a message is cut short")

// attributes are those of one message or nest, by type. A type comes once.
type attributes map[uint16][]byte

func attrs(data []byte, skip int) (attributes, error) {
	list, err := list(data, skip)
	if err != nil {
		return nil, err
	}
	out := attributes{}
	for _, a := range list {
		out[a.Type&typeMask] = a.Data
	}
	return out, nil
}

func list(data []byte, skip int) ([]netlink.Attribute, error) {
	if len(data) < skip {
		return nil, errShort
	}
	list, err := netlink.UnmarshalAttributes(data[skip:])
	if err != nil {
		return nil, fmt.Errorf("packets: %w", err)
	}
	return list, nil
}

func text(b []byte) string { return strings.TrimRight(string(b), "\x00") }

// value is the bytes of a nest NFTA_DATA_VALUE.
func value(b []byte) ([]byte, error) {
	at, err := attrs(b, 0)
	if err != nil {
		return nil, err
	}
	v, ok := at[unix.NFTA_DATA_VALUE]
	if !ok || len(v) == 0 || len(v) > 64 {
		return nil, fmt.Errorf("packets: a value of %d bytes", len(v))
	}
	return v, nil
}

// verdictOf is the verdict of a nest NFTA_DATA_VERDICT; nil when it holds none.
func verdictOf(b []byte) (*Verdict, error) {
	at, err := attrs(b, 0)
	if err != nil {
		return nil, err
	}
	raw, ok := at[unix.NFTA_DATA_VERDICT]
	if !ok {
		return nil, nil
	}
	at, err = attrs(raw, 0)
	if err != nil {
		return nil, err
	}
	if len(at[unix.NFTA_VERDICT_CODE]) != 4 {
		return nil, errors.New("packets: a verdict without a code")
	}
	return &Verdict{Code: int32(u32(at[unix.NFTA_VERDICT_CODE])), Chain: text(at[unix.NFTA_VERDICT_CHAIN])}, nil // #nosec G115 -- verdicts are signed
}

func (r *Ruleset) addTable(f Family, at attributes) error {
	t := &Table{Family: f, Name: text(at[unix.NFTA_TABLE_NAME]), Chains: map[string]*Chain{}, Sets: map[string]*Set{}}
	t.Dormant = len(at[unix.NFTA_TABLE_FLAGS]) == 4 && u32(at[unix.NFTA_TABLE_FLAGS])&tableDormant != 0
	r.Tables = append(r.Tables, t)
	return nil
}

func (r *Ruleset) table(f Family, name []byte) (*Table, error) {
	if t := r.Table(f, text(name)); t != nil {
		return t, nil
	}
	return nil, fmt.Errorf("packets: a part of table %s %s, which is not listed", f, text(name))
}

func (r *Ruleset) addChain(f Family, at attributes) error {
	t, err := r.table(f, at[unix.NFTA_CHAIN_TABLE])
	if err != nil {
		return err
	}
	c := &Chain{Name: text(at[unix.NFTA_CHAIN_NAME]), Type: text(at[unix.NFTA_CHAIN_TYPE])}
	if hook, ok := at[unix.NFTA_CHAIN_HOOK]; ok {
		h, err := attrs(hook, 0)
		if err != nil {
			return err
		}
		if len(h[unix.NFTA_HOOK_HOOKNUM]) != 4 || len(h[unix.NFTA_HOOK_PRIORITY]) != 4 {
			return fmt.Errorf("packets: the hook of chain %s of table %s cannot be read", c.Name, t)
		}
		c.Base, c.Hook = true, u32(h[unix.NFTA_HOOK_HOOKNUM])
		c.Priority = int32(u32(h[unix.NFTA_HOOK_PRIORITY])) // #nosec G115 -- priorities are signed
		if p := at[unix.NFTA_CHAIN_POLICY]; len(p) == 4 {
			c.Drop = u32(p) == drop
		}
	}
	t.Chains[c.Name] = c
	return nil
}

func (r *Ruleset) addRule(f Family, at attributes) error {
	t, err := r.table(f, at[ruleTable])
	if err != nil {
		return err
	}
	c := t.Chains[text(at[ruleChain])]
	if c == nil {
		return fmt.Errorf("packets: a rule of chain %s, which table %s does not have", text(at[ruleChain]), t)
	}
	var rule Rule
	for _, b := range at[ruleHandle] {
		rule.Handle = rule.Handle<<8 | uint64(b)
	}
	exprs, err := list(at[ruleExprs], 0)
	if err != nil {
		return err
	}
	for _, e := range exprs {
		parts, err := attrs(e.Data, 0)
		if err != nil {
			return err
		}
		x := Expr{Name: text(parts[unix.NFTA_EXPR_NAME]), Attr: attributes{}}
		if x.Name == "" {
			return errors.New("packets: an expression without a name")
		}
		if data, ok := parts[unix.NFTA_EXPR_DATA]; ok {
			if x.Attr, err = attrs(data, 0); err != nil {
				return err
			}
		}
		rule.Exprs = append(rule.Exprs, x)
	}
	c.Rules = append(c.Rules, rule)
	return nil
}

func (r *Ruleset) addSet(f Family, at attributes) error {
	t, err := r.table(f, at[unix.NFTA_SET_TABLE])
	if err != nil {
		return err
	}
	s := &Set{Name: text(at[unix.NFTA_SET_NAME])}
	if b := at[unix.NFTA_SET_FLAGS]; len(b) == 4 {
		s.Flags = u32(b)
	}
	if b := at[unix.NFTA_SET_KEY_LEN]; len(b) == 4 {
		s.KeyLen = int(u32(b))
	}
	if s.KeyLen <= 0 || s.KeyLen > 64 {
		return fmt.Errorf("packets: set %s of table %s has keys of %d bytes", s.Name, t, s.KeyLen)
	}
	t.Sets[s.Name] = s
	return nil
}

func (s *Set) addElements(_ Family, at attributes) error {
	items, err := list(at[unix.NFTA_SET_ELEM_LIST_ELEMENTS], 0)
	if err != nil {
		return err
	}
	for _, item := range items {
		parts, err := attrs(item.Data, 0)
		if err != nil {
			return err
		}
		var el Element
		if raw, ok := parts[unix.NFTA_SET_ELEM_KEY]; ok {
			if el.Key, err = value(raw); err != nil {
				return err
			}
		} else { // the catch-all element
			el.Key, el.Last = make([]byte, s.KeyLen), bytes.Repeat([]byte{255}, s.KeyLen)
		}
		if len(el.Key) != s.KeyLen {
			return fmt.Errorf("packets: a key of %d bytes, want %d", len(el.Key), s.KeyLen)
		}
		if raw, ok := parts[elemKeyEnd]; ok {
			if el.Last, err = value(raw); err != nil {
				return err
			}
		}
		if f := parts[unix.NFTA_SET_ELEM_FLAGS]; len(f) == 4 {
			el.End = u32(f)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		}
		if raw, ok := parts[unix.NFTA_SET_ELEM_DATA]; ok {
			if el.Verdict, err = verdictOf(raw); err != nil {
				return err
			}
		}
		s.Elements = append(s.Elements, el)
	}
	return nil
}

// close turns the starts and ends of an interval set into closed intervals.
func (s *Set) close() error {
	if s.Flags&unix.NFT_SET_INTERVAL == 0 {
		for i := range s.Elements {
			if s.Elements[i].Last == nil {
				s.Elements[i].Last = s.Elements[i].Key
			}
		}
		return nil
	}
	slices.SortStableFunc(s.Elements, func(a, b Element) int {
		if c := bytes.Compare(a.Key, b.Key); c != 0 {
			return c
		}
		if a.End != b.End && a.End {
			return -1 // one interval ends where the next begins
		}
		return 0
	})
	var out []Element
	for i, el := range s.Elements {
		if el.End {
			continue
		}
		if el.Last == nil {
			el.Last = bytes.Repeat([]byte{255}, s.KeyLen)
			if i+1 < len(s.Elements) {
				el.Last = before(s.Elements[i+1].Key)
			}
		}
		if bytes.Compare(el.Key, el.Last) > 0 {
			return fmt.Errorf("packets: an interval from %x to %x", el.Key, el.Last)
		}
		out = append(out, el)
	}
	s.Elements = out
	return nil
}

// before is the number before a big-endian one that is not zero.
func before(b []byte) []byte {
	out := slices.Clone(b)
	for i := len(out) - 1; i >= 0; i-- {
		out[i]--
		if out[i] != 255 {
			break
		}
	}
	return out
}
