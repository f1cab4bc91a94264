package simtest

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/sim"
	"github.com/recast-sh/recast/internal/sim/record"
)

// advised are the commands in hints.
var advised = regexp.MustCompile(`qm disk move \d+ \w+ --target-vmid OTHER --target-disk KEY|qm set \d+ --delete [a-z]+\d+`)

// TestAdviceKeepsAForeignDisk: a person attaches a disk to a VM during its exchange, and
// then types only what the hints say: their disk stays, and the exchange completes.
func TestAdviceKeepsAForeignDisk(t *testing.T) {
	created := foreignMoment{is: func(c record.Call) bool { return c.Params["vmid"] == strconv.Itoa(matrixVM) }, after: true}
	parked := foreignMoment{is: func(c record.Call) bool { return strings.HasSuffix(c.Path, "/move_disk") }, after: true}
	for name, c := range map[string]struct {
		at      foreignMoment
		detach  bool   // as the page says
		refused string // then
	}{
		"the new VM":           {at: created, refused: "has scsi5"},
		"the new VM, detached": {at: created, detach: true},
		"the old VM":           {at: parked, refused: "has scsi5"},
		"the old VM, detached": {at: parked, detach: true, refused: "has unused0"},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T) {
				s := newForeignExchange(t, foreignWay{cluster.Recreate, false})
				came, err := s.disturbed(t.Context(), t, c.at, func() { must(t, errOf(s.play(foreignActNamed("adds a disk")))) })
				if came && err != nil && !strings.Contains(err.Error(), "has scsi5") {
					err = s.again(t.Context()) // their command crossed a change of ours
				}
				if !came || err == nil || !strings.Contains(err.Error(), "has scsi5") {
					t.Fatalf("came %t, err = %v", came, err)
				}
				shell := sim.Shell{World: s.world, Host: s.host}
				must(t, s.defineStranger())
				if c.detach {
					s.typed(t, shell, fmt.Sprintf("qm set %d --protection 0", s.vm))
					s.typed(t, shell, fmt.Sprintf("qm set %d --delete scsi5", s.vm))
					err = s.again(t.Context())
				}
				if c.refused == "" {
					must(t, err)
				} else {
					if err == nil || !strings.Contains(err.Error(), c.refused) {
						t.Fatalf("err = %v", err)
					}
					for _, command := range advised.FindAllString(strings.Join(fault.Hints(err), "\n"), -1) {
						s.typed(t, shell, command)
					}
					must(t, s.again(t.Context()))
				}
				must(t, s.ended())
				s.requireNothingElse(t, nil, "in the end")
			})
		})
	}
}

// typed runs a command from a hint, with one of their VMs in place of OTHER.
func (s *foreignScene) typed(t *testing.T, shell sim.Shell, command string) {
	t.Helper()
	filled := strings.NewReplacer("OTHER", strconv.Itoa(foreignVM), "KEY", "scsi5").Replace(command)
	if said, err := shell.Run(strings.Fields(filled)); err != nil {
		t.Fatalf("%s: %v\n%s", filled, err, said)
	}
}
