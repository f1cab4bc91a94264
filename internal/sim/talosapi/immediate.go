package talosapi

import (
	"errors"
	"fmt"
	"reflect"

	"github.com/siderolabs/talos/pkg/machinery/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configdiff"
	"github.com/siderolabs/talos/pkg/machinery/config/container"
)

// immediate are the fields of machine, and of machine.features, that Talos before 1.14 changes
// without a reboot, besides debug and cluster (CanApplyImmediate in
// internal/app/machined/pkg/runtime/v1alpha1/v1alpha1_runtime.go of 1.12 and 1.13).
var (
	immediate = []string{
		"MachineCA", "MachineAcceptedCAs", "MachineTime", "MachineCertSANs", "MachineInstall", "MachineNetwork", "MachineSysfs", "MachineSysctls",
		"MachineLogging", "MachineControlPlane", "MachineKubelet", "MachineKernel", "MachineRegistries", "MachinePods", "MachineSeccompProfiles",
		"MachineNodeAnnotations", "MachineNodeLabels", "MachineNodeTaints",
	}
	immediateFeatures = []string{
		"KubernetesTalosAPIAccessConfig", "KubePrismSupport", "HostDNSSupport", "ImageCacheSupport", "FeatureNodeAddressSortAlgorithm",
	}
)

// canApplyImmediate is the error of a Talos before 1.14 for a configuration that needs a reboot. Other
// documents than the main one never need one for it.
func canApplyImmediate(active, wanted config.Provider) error {
	if active == nil || active.RawV1Alpha1() == nil || wanted.RawV1Alpha1() == nil {
		return errors.New("no current config")
	}
	now, then := active.RawV1Alpha1(), wanted.RawV1Alpha1().DeepCopy()
	then.ConfigDebug, then.ClusterConfig = now.ConfigDebug, now.ClusterConfig
	if now.MachineConfig != nil && then.MachineConfig != nil {
		setFields(then.MachineConfig, now.MachineConfig, immediate)
		if now.MachineConfig.MachineFeatures != nil && then.MachineConfig.MachineFeatures != nil {
			setFields(then.MachineConfig.MachineFeatures, now.MachineConfig.MachineFeatures, immediateFeatures)
		}
	}
	if reflect.DeepEqual(now, then) {
		return nil
	}
	diff, err := configdiff.DiffConfigs(container.NewV1Alpha1(now), container.NewV1Alpha1(then))
	if err != nil {
		return fmt.Errorf("error calculating diff: %w", err)
	}
	return fmt.Errorf("this config change can't be applied in immediate mode\ndiff:\n%s", diff)
}

// setFields copies fields from one struct to another of its type.
func setFields[T any](to, from *T, names []string) {
	for _, name := range names {
		reflect.ValueOf(to).Elem().FieldByName(name).Set(reflect.ValueOf(from).Elem().FieldByName(name))
	}
}
