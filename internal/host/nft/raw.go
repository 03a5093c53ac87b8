package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// What the library cannot read back (v0.3.0): expressions that it does not
// know are left out of a rule, byteorder among them, and the verdicts of a map
// are dropped. Both decide here, so they are read from the messages.

// typeMask takes the flags (nested, byte order) from an attribute's type
// (NLA_TYPE_MASK in linux/netlink.h).
const typeMask = 0x3fff

// dump asks for every object of a kind in one of our chains or sets. One that
// does not exist gives nothing.
func (t *Table) dump(kind uint16, attr uint16, name string) ([]netlink.Message, error) {
	body, err := netlink.MarshalAttributes([]netlink.Attribute{
		{Type: 1, Data: []byte(Name + "\x00")}, // NFTA_RULE_TABLE, NFTA_SET_ELEM_LIST_TABLE
		{Type: attr, Data: []byte(name + "\x00")},
	})
	if err != nil {
		return nil, fmt.Errorf("nft: read %s: %w", name, err)
	}
	messages, err := t.raw.Execute(netlink.Message{
		Header: netlink.Header{Type: netlink.HeaderType(unix.NFNL_SUBSYS_NFTABLES<<8 | kind), Flags: netlink.Request | netlink.Dump},
		Data:   append([]byte{unix.NFPROTO_INET, unix.NFNETLINK_V0, 0, 0}, body...),
	})
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("nft: read %s: %w", name, err)
	}
	return messages, nil
}

// rawNames gives, by rule handle, the names of a chain's expressions.
func (t *Table) rawNames(chain string) (map[uint64][]string, error) {
	messages, err := t.dump(unix.NFT_MSG_GETRULE, unix.NFTA_RULE_CHAIN, chain)
	if err != nil {
		return nil, err
	}
	out := map[uint64][]string{}
	for _, m := range messages {
		handle, list, err := ruleNames(m.Data)
		if err != nil {
			return nil, fmt.Errorf("nft: read a rule of %s: %w", chain, err)
		}
		out[handle] = list
	}
	return out, nil
}

func ruleNames(data []byte) (handle uint64, list []string, err error) {
	rule, err := attributes(data, 4)
	if err != nil {
		return 0, nil, err
	}
	for _, a := range rule {
		switch a.Type & typeMask {
		case unix.NFTA_RULE_HANDLE:
			if len(a.Data) == 8 {
				handle = binary.BigEndian.Uint64(a.Data)
			}
		case unix.NFTA_RULE_EXPRESSIONS:
			exprs, err := attributes(a.Data, 0)
			if err != nil {
				return 0, nil, err
			}
			for _, e := range exprs {
				parts, err := attributes(e.Data, 0)
				if err != nil {
					return 0, nil, err
				}
				i := slices.IndexFunc(parts, func(p netlink.Attribute) bool { return p.Type&typeMask == unix.NFTA_EXPR_NAME })
				if i < 0 {
					return 0, nil, errors.New("an expression has no name")
				}
				list = append(list, strings.TrimRight(string(parts[i].Data), "\x00"))
			}
		}
	}
	return handle, list, nil
}

// rawVerdicts reads a map from ids to verdicts.
func (t *Table) rawVerdicts(set string) ([]nftables.SetElement, error) {
	messages, err := t.dump(unix.NFT_MSG_GETSETELEM, unix.NFTA_SET_ELEM_LIST_SET, set)
	if err != nil {
		return nil, err
	}
	var out []nftables.SetElement
	for _, m := range messages {
		elements, err := mapElements(m.Data)
		if err != nil {
			return nil, fmt.Errorf("nft: read map %s: %w", set, err)
		}
		out = append(out, elements...)
	}
	return out, nil
}

func mapElements(data []byte) ([]nftables.SetElement, error) {
	top, err := attributes(data, 4)
	if err != nil {
		return nil, err
	}
	var out []nftables.SetElement
	for _, a := range top {
		if a.Type&typeMask != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			continue
		}
		list, err := attributes(a.Data, 0)
		if err != nil {
			return nil, err
		}
		for _, item := range list {
			key, err := nested(item.Data, unix.NFTA_SET_ELEM_KEY, unix.NFTA_DATA_VALUE)
			if err != nil {
				return nil, err
			}
			code, err := nested(item.Data, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CODE)
			if err != nil {
				return nil, err
			}
			chain, err := nested(item.Data, unix.NFTA_SET_ELEM_DATA, unix.NFTA_DATA_VERDICT, unix.NFTA_VERDICT_CHAIN)
			if err != nil {
				return nil, err
			}
			if len(code) != 4 {
				return nil, errors.New("an element has no verdict")
			}
			out = append(out, nftables.SetElement{Key: key, VerdictData: &expr.Verdict{
				Kind:  expr.VerdictKind(int32(binary.BigEndian.Uint32(code))), // #nosec G115 -- the kernel's verdicts are signed
				Chain: strings.TrimRight(string(chain), "\x00"),
			}})
		}
	}
	return out, nil
}

// nested follows a path of attribute types; what is not there is nil.
func nested(data []byte, path ...uint16) ([]byte, error) {
	for _, want := range path {
		list, err := attributes(data, 0)
		if err != nil {
			return nil, err
		}
		i := slices.IndexFunc(list, func(a netlink.Attribute) bool { return a.Type&typeMask == want })
		if i < 0 {
			return nil, nil
		}
		data = list[i].Data
	}
	return data, nil
}

func attributes(data []byte, skip int) ([]netlink.Attribute, error) {
	if len(data) < skip {
		return nil, errors.New("a message is cut short")
	}
	return netlink.UnmarshalAttributes(data[skip:])
}

// names gives the kernel's names of expressions of ours.
func names(exprs []expr.Any) []string {
	var out []string
	for _, e := range exprs {
		switch e.(type) {
		case *expr.Meta:
			out = append(out, "meta")
		case *expr.Cmp:
			out = append(out, "cmp")
		case *expr.Payload:
			out = append(out, "payload")
		case *expr.Bitwise:
			out = append(out, "bitwise")
		case *expr.Byteorder:
			out = append(out, "byteorder")
		case *expr.Lookup:
			out = append(out, "lookup")
		case *expr.Counter:
			out = append(out, "counter")
		case *expr.Reject:
			out = append(out, "reject")
		case *expr.Verdict:
			out = append(out, "immediate")
		}
	}
	return out
}
