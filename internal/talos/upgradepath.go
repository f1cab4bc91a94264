package talos

import (
	"fmt"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
)

// oldest is the first release whose nodes are rolled. Those before do not say
// which boot entry they run (CHANGELOG.md of Talos, 1.12.0-alpha.0): whether
// what was installed has been booted can't be told there.
var oldest = config.TalosVersion1_12

// Unsupported implements cluster.MachineReader with Talos' own tables. Of Talos
// only an installer looks at them, so that nobody does where a machine is made
// anew (cmd/installer/pkg/install/preflight.go), and nobody at those for Kubernetes.
func (*Client) Unsupported(from, to, kubelet string) []string {
	host, errHost := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: from})
	target, errTarget := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: to})
	old, errOld := config.ParseContractFromVersion(from)
	wanted, errWanted := config.ParseContractFromVersion(to)
	switch {
	case errHost != nil || errOld != nil:
		return []string{fmt.Sprintf("it runs Talos %q, which is no version that recast knows", from)}
	case errTarget != nil || errWanted != nil:
		return []string{fmt.Sprintf("Talos %q is no version that recast knows", to)}
	case target.UpgradeableFrom(target) != nil: // the tables do not have it
		return []string{fmt.Sprintf("this recast does not know Talos %s, neither what can become of it nor its machine configuration: "+
			"use a recast that does, or another talos.version", to)}
	}
	var out []string
	if oldest.Greater(old) {
		out = append(out, fmt.Sprintf("it runs Talos %s, and recast rolls nodes of %s and later: upgrade it with talosctl first", from, oldest))
	}
	if err := target.UpgradeableFrom(host); err != nil {
		out = append(out, fmt.Sprintf("Talos does not support %s → %s (%s): %s", from, to, err, wayOut(old, wanted, host)))
	}
	if kubelet == "" || old.Major == wanted.Major && old.Minor == wanted.Minor { // it runs so already
		return out
	}
	kubernetes, err := compatibility.ParseKubernetesVersion(kubelet)
	if err == nil {
		err = kubernetes.SupportedWith(target)
	}
	if err != nil {
		out = append(out, fmt.Sprintf("Talos %s does not support the Kubernetes that runs (%s): bring Kubernetes to a version that both support first (recast upgrade-k8s), or go to another Talos (talos.version)", to, err))
	}
	return out
}

// wayOut is what to do instead where Talos does not support the way.
func wayOut(old, wanted *config.VersionContract, host *compatibility.TalosVersion) string {
	if !wanted.Greater(old) {
		return "it goes back no further than that; give talos.version a newer one"
	}
	for minor := wanted.Minor - 1; minor > old.Minor; minor-- {
		between := fmt.Sprintf("v%d.%d", wanted.Major, minor)
		step, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: between})
		if err == nil && step.UpgradeableFrom(host) == nil {
			return "go to " + between + " first, with all nodes, then on"
		}
	}
	return "upgrade it step by step, one minor version at a time"
}
