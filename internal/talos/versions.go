package talos

import (
	"fmt"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"golang.org/x/mod/semver"
)

// oldest is the first release whose nodes recast rolls. Earlier releases do not report which boot entry they run
// (CHANGELOG.md of Talos, 1.12.0-alpha.0), so recast cannot verify that they booted the installed system.
var oldest = config.TalosVersion1_12

// Unsupported implements cluster.Compatibility with Talos' own tables. In Talos only an installer checks the tables
// (cmd/installer/pkg/install/preflight.go). Nothing checks them when a machine is recreated, and nothing checks the
// tables for Kubernetes.
func (*Client) Unsupported(from, to, kubelet string) []string {
	host, target := version(from), version(to)
	old, errOld := config.ParseContractFromVersion(from)
	wanted, errWanted := config.ParseContractFromVersion(to)
	switch {
	case host == nil || errOld != nil:
		return []string{fmt.Sprintf("it runs Talos %q, which is not a version that recast knows", from)}
	case target == nil || errWanted != nil:
		return []string{fmt.Sprintf("Talos %q is not a version that recast knows", to)}
	case target.UpgradeableFrom(target) != nil: // the tables do not have this version
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
	if kubelet == "" || old.Major == wanted.Major && old.Minor == wanted.Minor { // the node already runs this minor version
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

// remedy returns what to do instead of an unsupported upgrade.
func remedy(old, wanted *config.VersionContract, host *compatibility.TalosVersion) string {
	if !wanted.Greater(old) {
		return "it cannot be downgraded that far; set talos.version to a newer one"
	}
	for minor := wanted.Minor - 1; minor > old.Minor; minor-- {
		between := fmt.Sprintf("v%d.%d", wanted.Major, minor)
		if step := version(between); step != nil && step.UpgradeableFrom(host) == nil {
			return "upgrade all nodes to " + between + " first"
		}
	}
	return "upgrade it step by step, one minor version at a time"
}

// maxMinor exceeds every minor version, of Talos and of Kubernetes, in this recast's tables.
const maxMinor = 100

// UnsupportedKubernetes implements cluster.Compatibility with Talos' own table.
func (*Client) UnsupportedKubernetes(talos, kubernetes string) string {
	wanted, err := compatibility.ParseKubernetesVersion(kubernetes)
	if err != nil {
		return fmt.Sprintf("Kubernetes %q is not a version that recast knows", kubernetes)
	}
	contract, errContract := config.ParseContractFromVersion(talos)
	oldest, newest := supported(talos)
	switch {
	case errContract != nil || newest == 0:
		return fmt.Sprintf("this recast does not know which Kubernetes Talos %s supports: use a newer recast", talos)
	case wanted.SupportedWith(version(talos)) == nil:
		return ""
	}
	text := fmt.Sprintf("Talos %s supports Kubernetes 1.%d to 1.%d, not %s", talos, oldest, newest, kubernetes)
	for step := 1; step < maxMinor; step++ {
		for _, other := range []int{contract.Minor + step, contract.Minor - step} {
			name := fmt.Sprintf("v%d.%d", contract.Major, other)
			t := version(name)
			if t == nil || wanted.SupportedWith(t) != nil {
				continue
			}
			if step > 1 {
				return fmt.Sprintf("%s: %s does; upgrade Talos step by step first (talos.version, recast roll)", text, name)
			}
			return fmt.Sprintf("%s: roll to Talos %s first (talos.version, recast lock, recast roll)", text, name)
		}
	}
	return text + ", and this recast knows no Talos that does"
}

// supported returns the oldest and the newest minor version of Kubernetes 1 that a Talos supports; 0 if unknown.
func supported(talos string) (oldest, newest int) {
	t := version(talos)
	for minor := range maxMinor {
		k, err := compatibility.ParseKubernetesVersion(fmt.Sprintf("1.%d.0", minor))
		if t == nil || err != nil || k.SupportedWith(t) != nil {
			continue
		}
		if newest == 0 {
			oldest = minor
		}
		newest = minor
	}
	return oldest, newest
}

// version parses a version of Talos; nil if it is invalid.
func version(talos string) *compatibility.TalosVersion {
	v, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: talos})
	if err != nil {
		return nil
	}
	return v
}

// NewestRelease returns the newest of some versions that is not a pre-release, "" if all are.
func NewestRelease(versions []string) string {
	newest := ""
	for _, v := range versions {
		if semver.IsValid(v) && semver.Prerelease(v) == "" && semver.Compare(v, newest) > 0 {
			newest = v
		}
	}
	return newest
}

// NextKubernetes returns the first release of the minor version after that of kubernetes, if the given Talos supports
// it. It returns "" if Talos does not, or if a version is not known. Kubernetes is upgraded one minor version at a
// time.
func NextKubernetes(talos, kubernetes string) string {
	var minor int
	if _, err := fmt.Sscanf(semver.MajorMinor(kubernetes), "v1.%d", &minor); err != nil {
		return ""
	}
	next := fmt.Sprintf("1.%d.0", minor+1)
	k, err := compatibility.ParseKubernetesVersion(next)
	t := version(talos)
	if err != nil || t == nil || k.SupportedWith(t) != nil {
		return ""
	}
	return "v" + next
}
