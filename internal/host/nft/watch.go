package nft

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// settle is how long Watch waits for a burst of changes to end.
const settle = 20 * time.Millisecond

// Watch calls changed, from one goroutine and never concurrently, after
// somebody else changed the table (a burst of changes gives one call), until
// ctx ends. Missed notifications count as a change. started is closed once it
// listens; it may be nil. The error is nil when ctx ended.
//
// A change is ours when its notification carries the netlink port id of our
// own socket; elements that expire are not notified as anybody's.
func (t *Table) Watch(ctx context.Context, started chan<- struct{}, changed func()) error {
	conn, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return fmt.Errorf("nft: watch: open netlink: %w", err)
	}
	defer func() { _ = conn.Close() }()
	if err := errors.Join(conn.SetReadBuffer(4<<20), conn.JoinGroup(unix.NFNLGRP_NFTABLES)); err != nil {
		return fmt.Errorf("nft: watch: join the notification group: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	if started != nil {
		close(started)
	}
	for {
		foreign, err := t.receive(conn)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("nft: watch: %w", err)
		}
		if !foreign {
			continue
		}
		for until := time.Now().Add(settle); time.Now().Before(until); {
			_ = conn.SetReadDeadline(until)
			if _, err := t.receive(conn); err != nil {
				break // the deadline, or a fault that the next receive reports
			}
		}
		_ = conn.SetReadDeadline(time.Time{})
		if ctx.Err() != nil { // it may have ended before the deadline was lifted
			return nil
		}
		changed()
	}
}

// receive reads notifications and says whether one of them is of a foreign
// change to our table.
func (t *Table) receive(conn *netlink.Conn) (bool, error) {
	messages, err := conn.Receive()
	if errors.Is(err, unix.ENOBUFS) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	for _, m := range messages {
		if t.foreign(m) {
			return true, nil
		}
	}
	return false, nil
}

func (t *Table) foreign(m netlink.Message) bool {
	if m.Header.PID == t.port || m.Header.PID == 0 || uint16(m.Header.Type)>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < 4 {
		return false
	}
	if m.Data[0] != unix.NFPROTO_INET { // struct nfgenmsg begins with the family
		return false
	}
	if uint16(m.Header.Type)&0xff == unix.NFT_MSG_NEWGEN {
		return false // says that a transaction ended; its parts were notified
	}
	ad, err := netlink.NewAttributeDecoder(m.Data[4:])
	if err != nil {
		return true
	}
	for ad.Next() {
		if ad.Type() == 1 { // NFTA_TABLE_NAME, NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, NFTA_SET_TABLE, NFTA_SET_ELEM_LIST_TABLE
			return ad.String() == Name
		}
	}
	return true
}
