package simtest

import (
	"strings"
	"testing"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/cluster/planning"
	"github.com/recast-sh/recast/internal/sim"
)

// TestKernelArgumentsOfTheConfiguration: with SeaBIOS, arguments of machine.install arrive with a recreate, and
// an upgrade in place, which would lose them, is refused until the schematic has them.
func TestKernelArgumentsOfTheConfiguration(t *testing.T) {
	inLab(t, sim.Options{ControlPlanes: 1, Workers: 1, Layouts: []sim.Layout{{Data: 1}, {Data: 1, SeaBIOS: true}}}, func(t *testing.T, lab *Lab) {
		files := lab.keptConfigs()
		text := strings.Replace(string(files["wk1"]), "grubUseUKICmdline: true", "grubUseUKICmdline: false", 1)
		files["wk1"] = cluster.Secret(strings.Replace(text, "    install:\n", "    install:\n        extraKernelArgs: [net.ifnames=0]\n", 1))
		user := files.user(lab, firstRun)
		n := lab.planOf(user, "wk1", planning.Policy{})
		if notes := strings.Join(n.Notes, "; "); n.Strategy != cluster.ApplyConfig || !strings.Contains(notes, "takes effect at a recreate or reimage by ISO at the earliest") {
			t.Errorf("planned as %s: %q", n.Strategy, notes)
		}
		only := planning.Policy{Only: []string{"wk1"}}
		must(t, user.roll(only)(t.Context()))
		lab.Patch(sim.PatchedExtension)
		must(t, user.roll(only)(t.Context())) // a recreate, whose installer has the configuration
		lab.Patch(sim.CommonExtension)
		lab.inPlace()
		n = lab.planOf(user, "wk1", planning.Policy{})
		if len(n.Refused) != 1 || !strings.HasPrefix(n.Refused[0], "its kernel has net.ifnames=0 from machine.install.extraKernelArgs, and the next one would not have it") {
			t.Errorf("refused %q", n.Refused)
		}
	})
}
