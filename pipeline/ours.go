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
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/journal"
	"github.com/recast-sh/recast/internal/savefile"
)

// Trust says what proves that a parking VM is ours.
func (p Project) Trust() cluster.Trust {
	t := cluster.Trust{Nodes: p.NodeVMs(planning.Plan{}), Known: knownParkings{p.State()}}
	for _, n := range p.Config.Nodes {
		if pool := shapeOf(p.Config, n).Pool; pool != "" && !slices.Contains(t.Pools, pool) {
			t.Pools = append(t.Pools, pool)
		}
	}
	return t
}

// knownParkings is a file with a line for each parking VM that was proven to be ours: its number and its SMBIOS UUID.
// Of two processes that write at once, one's line is lost, and proven again.
type knownParkings struct{ dir string }

func (k knownParkings) file() string { return filepath.Join(k.dir, "parkings") }

func knownLine(vm cluster.VM) string { return fmt.Sprintf("%d %s", vm.ID, vm.UUID()) }

func (k knownParkings) lines() ([]string, error) {
	b, err := os.ReadFile(k.file())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return strings.Split(strings.TrimSpace(string(b)), "\n"), fault.Prefix("read which parking VMs are ours", err)
}

func (k knownParkings) Has(vm cluster.VM) (bool, error) {
	lines, err := k.lines()
	return vm.UUID() != "" && slices.Contains(lines, knownLine(vm)), err
}

func (k knownParkings) Add(vm cluster.VM) error {
	lines, err := k.lines()
	if err != nil || slices.Contains(lines, knownLine(vm)) {
		return err
	}
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" || strings.HasPrefix(line, fmt.Sprintf("%d ", vm.ID)) })
	if err := journal.KeepOutOfGit(k.dir); err != nil {
		return err
	}
	return savefile.Replace(k.file(), []byte(strings.Join(append(lines, knownLine(vm)), "\n")+"\n"), 0o600)
}
