package doctor

import (
	"context"
	"fmt"
	"io/fs"
	"strings"

	"bulkhead/internal/host/ledger"
)

func wardenChecks() []Check {
	return []Check{
		{
			Layer: LayerWarden, Name: "warden", Look: running,
			Why:  "it keeps every team; without it nothing is started, restarted or put back",
			Mend: "see `journalctl -u bulkhead-warden` or /var/lib/bulkhead/log/warden.log",
		},
		{
			Layer: LayerWarden, Name: "ledger", Look: readLedger,
			Why:  "it lists what was made on this host; without it nothing can be removed",
			Mend: "restore it from a backup, or compare its lines with the host and remove the bad one",
		},
	}
}

func running(ctx context.Context, h Host) Answer {
	where := h.Layout.WardenSocket()
	if h.Ping == nil {
		return Answer{State: Unknown, Found: "not asked", Where: where}
	}
	build, gone, err := h.Ping(ctx)
	switch {
	case gone:
		return Answer{State: OK, Found: "not running: `bulkhead up` or systemd starts it", Where: where}
	case err != nil:
		a := unread(where, err)
		a.Found = reason(err)
		return a
	case h.Build != "" && build != h.Build:
		return Answer{State: Weak, Found: fmt.Sprintf("running, build %s, while this program is %s", build, h.Build), Where: where, Mend: "restart the warden (systemctl restart bulkhead-warden); agents keep running"}
	}
	return Answer{State: OK, Found: "running, build " + build, Where: where}
}

func readLedger(_ context.Context, h Host) Answer {
	where := h.Layout.Ledger()
	raw, err := fs.ReadFile(h.Files, strings.TrimPrefix(where, "/"))
	if absent(err) {
		return Answer{State: OK, Found: "none: nothing was made here yet", Where: where}
	}
	if err != nil {
		return unread(where, err)
	}
	things, err := ledger.Read(raw)
	if err != nil {
		return Answer{State: Missing, Found: err.Error(), Where: where}
	}
	return Answer{State: OK, Found: fmt.Sprintf("%d things on this host are ours", len(things)), Where: where}
}
