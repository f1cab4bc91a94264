package machineconfig

import (
	"fmt"
	"strings"

	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/compatibility"
	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/generate/secrets"
	"github.com/siderolabs/talos/pkg/machinery/constants"
	"github.com/siderolabs/talos/pkg/machinery/gendata"
	"go.yaml.in/yaml/v4"

	"github.com/recast-sh/recast/cluster"
	"github.com/recast-sh/recast/internal/fault"
)

// NewestTalos is the newest version of Talos whose configurations this recast knows.
func NewestTalos() string { return strings.TrimSpace(gendata.VersionTag) }

// oldestTalos is the first release whose nodes recast rolls (see internal/talos).
var oldestTalos = config.TalosVersion1_12

// KubernetesFor is the version of Kubernetes for a new cluster with that Talos: the wanted one, which
// Talos has to support, or else the newest that this recast knows; "" if Talos does not support that.
func KubernetesFor(talos, wanted string) (string, error) {
	target, err := compatibility.ParseTalosVersion(&machineapi.VersionInfo{Tag: talos})
	if err == nil {
		err = target.UpgradeableFrom(target) // the tables have it
	}
	release, errRelease := config.ParseContractFromVersion(talos)
	if err != nil || errRelease != nil || oldestTalos.Greater(release) {
		return "", fault.WithHint(fault.Configf("Talos %s is not a version of which this recast can make a cluster", talos),
			"it takes v1.12 and later, up to the release of %s", NewestTalos())
	}
	version := strings.TrimPrefix(wanted, "v")
	if wanted == "" {
		version = constants.DefaultKubernetesVersion
	}
	kubernetes, err := compatibility.ParseKubernetesVersion(version)
	if err == nil {
		err = kubernetes.SupportedWith(target)
	}
	switch {
	case err != nil && wanted == "":
		return "", nil
	case err != nil:
		return "", fault.Configf("Kubernetes %s with Talos %s: %w", wanted, talos, err)
	}
	return "v" + version, nil
}

// NewSecrets makes the secrets of a new cluster, as talosctl gen secrets does for that version of Talos.
func NewSecrets(talos string) (cluster.Secret, error) {
	contract, err := config.ParseContractFromVersion(talos)
	if err != nil {
		return nil, fault.Configf("make the secrets of the cluster: %w", err)
	}
	bundle, err := secrets.NewBundle(secrets.NewClock(), contract)
	if err != nil {
		return nil, fmt.Errorf("make the secrets of the cluster: %w", err)
	}
	text, err := yaml.Marshal(bundle)
	if err != nil {
		return nil, fmt.Errorf("make the secrets of the cluster: %w", err)
	}
	return text, nil
}
