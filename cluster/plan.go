package cluster

import (
	"errors"
	"fmt"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
)

// DiskPlan is one drive in a plan.
type DiskPlan struct {
	Key    string `json:"key"`
	Serial string `json:"serial,omitempty"`
	Volid  string `json:"volid"` // now; "": it has none, and Where says more
	Size   string `json:"size,omitempty"`
	// Where the disk of an unfinished replacement is now: "scsi30 of parking VM 9900".
	Where string `json:"where,omitempty"`
	// NewSize is that of the blank system disk where it differs: never less.
	NewSize string `json:"newSize,omitempty"`
}

const (
	ControlPlane = "control-plane"
	Worker       = "worker"
)

// Unread is why a node's machine could not be read, and what to do about it.
func (o Observation) Unread(w Wanted, f Found) error {
	err := fmt.Errorf("node %s: %s", w.Name, strings.Join(Diff(w, f, nil).Unread, "; "))
	hints := fault.Hints(errors.Join(f.Errs...))
	if lost := o.lostTrack(f); lost != "" {
		hints = append([]string{lost}, hints...)
	}
	switch {
	case f.Blank != nil:
		hints = append(hints, f.withoutConfig())
	case f.VM != nil && f.VM.Running && f.Addr.IsValid() && len(hints) == 0:
		hints = append(hints, f.silent(w))
	}
	for _, hint := range hints {
		err = fault.WithHint(err, "%s", hint)
	}
	return err
}

// Unfinished says whether an earlier run left something to finish on the node
// before anything else can be planned for it.
func (f *Found) Unfinished() bool {
	if f.Open() {
		return true
	}
	return f.Node != nil && f.Node.Mark != nil && f.Node.Mark.Strategy == InPlace && (f.Machine == nil || f.Node.Mark.Installed)
}

func JoinOptions(volid, options string) string {
	if options == "" {
		return volid
	}
	return volid + "," + options
}
