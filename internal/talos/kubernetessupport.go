package talos

import (
	"fmt"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
)

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

// supported returns the oldest and the newest minor version of Kubernetes 1 that a
// Talos supports; 0 if unknown.
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

// version is nil for an invalid version.
func version(talos string) *compatibility.TalosVersion {
	v, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: talos})
	if err != nil {
		return nil
	}
	return v
}
