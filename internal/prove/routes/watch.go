package routes

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// groups are what the kernel tells of: interfaces, traffic control, routes, rules
// (enum rtnetlink_groups, linux/rtnetlink.h).
var groups = []uint32{unix.RTNLGRP_LINK, unix.RTNLGRP_TC, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE}

// Watch calls changed after each change of what [Read] reads over netlink, until ctx
// ends. BPF programs and IPsec policies are not told of. Changes that were missed
// count as one.
func Watch(ctx context.Context, changed func()) error {
	c, err := netlink.Dial(unix.NETLINK_ROUTE, nil)
	if err != nil {
		return fmt.Errorf("routes: watch: %w", err)
	}
	defer func() { _ = c.Close() }()
	for _, g := range groups {
		if err := c.JoinGroup(g); err != nil {
			return fmt.Errorf("routes: watch: group %d: %w", g, err)
		}
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		_, err := c.Receive()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, unix.ENOBUFS) {
			return fmt.Errorf("routes: watch: %w", err)
		}
		changed()
	}
}
