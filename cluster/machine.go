package cluster

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/fault"
	"github.com/recast-sh/recast/internal/words"
)

// StandsIn begins what Standing says of a machine in another stage.
const StandsIn = "stage "

// Standing is how far a machine is that does not run, or is not ready.
func (m Machine) Standing() string {
	if m.Ready { // it always is while it neither boots nor runs (machine_status.go in machined)
		return StandsIn + m.Stage
	}
	return fmt.Sprintf("%s%s, not ready: %s", StandsIn, m.Stage, words.OrNone(strings.Join(m.Unmet, ", ")))
}

// CheckBooted compares what a machine has booted from the ISO of a build with that build.
func (b Build) CheckBooted(m Machine) (problems []error) {
	if m.Schematic.LockHash() != b.LockHash || m.Schematic.ID != b.SchematicID || m.TalosVersion != b.TalosVersion {
		problems = append(problems, fault.WithHint(
			fault.NoBoot.Refusedf("it booted %s with schematic %s (lock %s), wanted is %s with %s (lock %s)", m.TalosVersion,
				words.OrNone(words.Short(m.Schematic.ID)), words.OrNone(words.Short(m.Schematic.LockHash())), b.TalosVersion, words.Short(b.SchematicID), words.Short(b.LockHash)),
			"the bytes of the boot ISO %s are not what its name says: delete it from the Proxmox storage, then recast publish and recast roll again", b.ISOName))
	}
	for _, r := range DiffTarget(b, m) {
		problems = append(problems, fault.NoBoot.Refusedf("what it booted is not what is wanted: %s", r.Text))
	}
	return problems
}

// InstallsApart says whether the machine's Talos has an API that installs
// without a reboot (LifecycleService, since 1.13).
func (m Machine) InstallsApart() bool {
	major, minor, _ := strings.Cut(strings.TrimPrefix(m.TalosVersion, "v"), ".")
	minor, _, _ = strings.Cut(minor, ".")
	number, err := strconv.Atoi(minor)
	return major == "1" && err == nil && number >= 13
}
