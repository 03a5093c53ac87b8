package packets

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Watch calls changed after each change of a table that is not called except, until
// ctx ends. Changes that were missed count as one.
func Watch(ctx context.Context, except string, changed func()) error {
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("packets: watch: %w", err)
	}
	defer func() { _ = c.Close() }()
	if err := c.JoinGroup(unix.NFNLGRP_NFTABLES); err != nil {
		return fmt.Errorf("packets: watch: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		messages, err := c.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("packets: watch: %w", err)
		}
		other := err != nil
		for _, m := range messages {
			other = other || ofAnother(m, except)
		}
		if other {
			changed()
		}
	}
}

// ofAnother says whether a notification is about another table. The first attribute
// of each kind of them names the table.
func ofAnother(m netlink.Message, table string) bool {
	const head = 4 // struct nfgenmsg
	if uint16(m.Header.Type)&0xff == unix.NFT_MSG_NEWGEN || len(m.Data) < head {
		return false
	}
	list, err := netlink.UnmarshalAttributes(m.Data[head:])
	if err != nil {
		return true
	}
	for _, a := range list {
		if a.Type&typeMask == 1 {
			return unix.ByteSliceToString(a.Data) != table
		}
	}
	return true
}
