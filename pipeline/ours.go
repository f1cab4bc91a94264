package pipeline

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/parking"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/savefile"
	"github.com/recast-sh/recast/pipeline/past"
)

// Trust says what proves that a parking VM is ours.
func (p Project) Trust() cluster.Trust {
	t := cluster.Trust{Nodes: p.NodeVMs(planning.Plan{}), Known: knownParkings{filepath.Join(p.State(), past.ParkingsName), p.Runs().Elsewhere}}
	for _, n := range p.Config.Nodes {
		if pool := shapeOf(p.Config, n).Pool; pool != "" && !slices.Contains(t.Pools, pool) {
			t.Pools = append(t.Pools, pool)
		}
	}
	return t
}

// ByHand returns the commands that undo a node's last replacement here without recast, as the journal has them: who may edit a
// parking VM can change those in its Notes.
func ByHand(p Project, node string) (string, error) {
	infos, err := p.Runs().List()
	for _, info := range infos {
		j, errOpen := journal.Open(p.Runs().Dir, journal.Options{Run: info.ID, ReadOnly: true})
		if errOpen != nil {
			continue // a run of another machine
		}
		rec, errFact := past.Fact[parking.Record](j, node+"/"+parking.JournalKey)
		if err := errors.Join(errFact, j.Close()); err != nil {
			return "", err
		}
		if rec == nil {
			continue
		}
		if lines := rec.ByHand(); lines != "" {
			return lines, nil
		}
		return "", fault.Refusedf("node %s: its last replacement here, by run %s, moved no disk: nothing is to be put back by hand", node, info.ID)
	}
	return "", fault.WithHint(errors.Join(fault.Refusedf("node %s: no journal on this machine has a replacement of it", node), err), "its parking VM's Notes have the commands: qm config VMID")
}

// knownParkings is a file with a line for each parking VM that was proven to be ours: its number and its SMBIOS UUID.
// Runs of other machines bring theirs along. Of two processes that write at once, one's line is lost, and proven again.
type knownParkings struct{ here, elsewhere string }

func knownLine(vm cluster.VM) string { return fmt.Sprintf("%d %s", vm.ID, vm.UUID()) }

func linesOf(file string) ([]string, error) {
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n"), fault.Prefix("read which parking VMs are ours", err)
}

func (k knownParkings) Has(vm cluster.VM) (bool, error) {
	copies, _ := filepath.Glob(filepath.Join(k.elsewhere, "*", "*", past.ParkingsName)) // the pattern is valid
	for _, file := range append([]string{k.here}, copies...) {
		if lines, err := linesOf(file); err != nil || vm.UUID() != "" && slices.Contains(lines, knownLine(vm)) {
			return err == nil, err
		}
	}
	return false, nil
}

func (k knownParkings) Add(vm cluster.VM) error {
	lines, err := linesOf(k.here)
	if err != nil || slices.Contains(lines, knownLine(vm)) {
		return err
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" || strings.HasPrefix(line, fmt.Sprintf("%d ", vm.ID)) })
	if err := journal.KeepOutOfGit(filepath.Dir(k.here)); err != nil {
		return err
	}
	return savefile.Replace(k.here, []byte(strings.Join(append(lines, knownLine(vm)), "\n")+"\n"), 0o600)
}
