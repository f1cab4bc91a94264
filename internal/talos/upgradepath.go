package talos

import (
	"fmt"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
)

// oldest is the first release whose nodes are rolled. Earlier ones do not report
// which boot entry they run (CHANGELOG.md of Talos, 1.12.0-alpha.0), so that a boot
// of the installed system cannot be verified.
var oldest = config.TalosVersion1_12

// Unsupported implements cluster.Compatibility with Talos' own tables. In Talos only
// an installer checks them (cmd/installer/pkg/install/preflight.go), so nothing does
// when a machine is recreated, and nothing checks those for Kubernetes.
func (*Client) Unsupported(from, to, kubelet string) []string {
	host, errHost := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: from})
	target, errTarget := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: to})
	old, errOld := config.ParseContractFromVersion(from)
	wanted, errWanted := config.ParseContractFromVersion(to)
	switch {
	case errHost != nil || errOld != nil:
		return []string{fmt.Sprintf("it runs Talos %q, which is not a version that recast knows", from)}
	case errTarget != nil || errWanted != nil:
		return []string{fmt.Sprintf("Talos %q is not a version that recast knows", to)}
	case target.UpgradeableFrom(target) != nil: // the tables do not have it
		return []string{fmt.Sprintf("this recast does not know Talos %s, neither its upgrades nor its machine configuration: "+
			"use a recast that does, or another talos.version", to)}
	}
	var out []string
	if oldest.Greater(old) {
		out = append(out, fmt.Sprintf("it runs Talos %s, and recast rolls nodes of %s and later: upgrade it with talosctl first", from, oldest))
	}
	if err := target.UpgradeableFrom(host); err != nil {
		out = append(out, fmt.Sprintf("Talos does not support %s → %s (%s): %s", from, to, err, remedy(old, wanted, host)))
	}
	if kubelet == "" || old.Major == wanted.Major && old.Minor == wanted.Minor { // it runs this version already
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

// remedy is what to do instead of an unsupported upgrade.
func remedy(old, wanted *config.VersionContract, host *compatibility.TalosVersion) string {
	if !wanted.Greater(old) {
		return "it cannot be downgraded that far; set talos.version to a newer one"
	}
	for minor := wanted.Minor - 1; minor > old.Minor; minor-- {
		between := fmt.Sprintf("v%d.%d", wanted.Major, minor)
		step, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: between})
		if err == nil && step.UpgradeableFrom(host) == nil {
			return "upgrade all nodes to " + between + " first"
		}
	}
	return "upgrade it step by step, one minor version at a time"
}
