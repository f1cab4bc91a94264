package talosapi_test

import (
	"maps"
	"slices"
	"testing"

	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/google/go-cmp/cmp"
	machineapi "github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	"google.golang.org/grpc/status"

	"github.com/recast-sh/recast/internal/sim/talosapi"
)

// said is a status as a line: "OK", or code and message.
func said(err error) string {
	if err == nil {
		return "OK"
	}
	return status.Code(err).String() + " " + client.Status(err).Message()
}

// A machine in maintenance mode has the methods and behaviour of its release.
func TestMaintenanceOfEachRelease(t *testing.T) {
	unimplemented := func(mode string) string {
		return "Unimplemented apply configuration --mode='" + mode + "' is not supported in maintenance mode"
	}
	fourteen := map[string]string{
		"version": "OK", "services": "OK", "list": "OK", "reboot": "PermissionDenied not authorized", "meta": "PermissionDenied not authorized", "lacks": "",
		"mode REBOOT": "OK", "mode AUTO": "OK", "mode NO_REBOOT": "OK", "mode TRY": "OK", "mode STAGED": "OK",
		"mode 7":   "InvalidArgument incorrect mode '7' specified for the apply config call",
		"document": "InvalidArgument 1 error occurred:\n\t* UnattendedInstallConfig config is incompatible with v1alpha1 config (.machine.install)\n\n", "1.13's": "OK", "1.14's": "OK", "volume": "OK",
	}
	with := func(base map[string]string, more ...string) map[string]string {
		out := maps.Clone(base)
		for i := 0; i < len(more); i += 2 {
			out[more[i]] = more[i+1]
		}
		return out
	}
	thirteen := with(fourteen, "mode 7", "Unknown incorrect mode '7' specified for the apply config call", "lacks", " BootID UnattendedInstallStatus",
		"document", `InvalidArgument error decoding document v1alpha1/UnattendedInstallConfig/ (line 2): "UnattendedInstallConfig" "v1alpha1": not registered`,
		"1.14's", `InvalidArgument error decoding document v1alpha1/KernelModuleConfig/nbd (line 1): "KernelModuleConfig" "v1alpha1": not registered`,
		"volume", `InvalidArgument only ["STATE" "EPHEMERAL" "IMAGECACHE"] volumes are supported`)
	twelve := with(thirteen, "version", "Unimplemented API is not implemented in maintenance mode", "meta", "Unimplemented API is not implemented in maintenance mode",
		"services", "Unimplemented method ServiceList not implemented", "list", "Unimplemented method List not implemented", "reboot", "Unimplemented method Reboot not implemented",
		"1.13's", `InvalidArgument error decoding document v1alpha1/EnvironmentConfig/ (line 1): "EnvironmentConfig" "v1alpha1": not registered`,
		"mode NO_REBOOT", unimplemented("no-reboot"), "mode STAGED", unimplemented("staged"), "mode 7", unimplemented("7"))
	answers := map[string]map[string]string{"v1.12.6": twelve, "v1.13.9": thirteen, "v1.14.1": fourteen, "v1.11.2": twelve, "v1.15.0": fourteen}
	each(t, answers, func(t *testing.T, talos string, want map[string]string) {
		l := newLab(t)
		_, c := l.blank(workerAddr, version("new", talos))
		if diff := cmp.Diff(want, inMaintenance(t, c, l.config(talosapi.Machine{Hostname: "wk1", Installer: newRef}))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
}

// inMaintenance requests everything that differs from a machine in maintenance mode; nothing changes
// the machine.
func inMaintenance(t *testing.T, c *client.Client, conf []byte) map[string]string {
	t.Helper()
	ctx, got := t.Context(), map[string]string{}
	_, err := c.Version(ctx)
	got["version"] = said(err)
	_, err = c.ServiceList(ctx)
	got["services"] = said(err)
	got["reboot"], got["meta"] = said(c.Reboot(ctx)), said(c.MetaWrite(ctx, 0x0c, nil))
	files, err := c.LS(ctx, &machineapi.ListRequest{Root: "/usr"})
	if err == nil {
		_, err = files.Recv()
	}
	got["list"] = said(err)
	all, err := safe.StateListAll[*meta.ResourceDefinition](ctx, c.COSI)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"BootID", "UnattendedInstallStatus"} {
		if _, there := all.Find(func(rd *meta.ResourceDefinition) bool { return rd.TypedSpec().DisplayType == kind }); !there {
			got["lacks"] += " " + kind
		}
	}
	got["lacks"] += ""
	apply := func(mode machineapi.ApplyConfigurationRequest_Mode, before string) string {
		_, err := c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: slices.Concat([]byte(before), conf), Mode: mode, DryRun: true})
		return said(err)
	}
	for mode, name := range machineapi.ApplyConfigurationRequest_Mode_name {
		got["mode "+name] = apply(machineapi.ApplyConfigurationRequest_Mode(mode), "")
	}
	_, err = c.ApplyConfiguration(ctx, &machineapi.ApplyConfigurationRequest{Data: conf, Mode: 7})
	got["mode 7"] = said(err)
	const auto = machineapi.ApplyConfigurationRequest_AUTO
	got["document"] = apply(auto, "---\napiVersion: v1alpha1\nkind: UnattendedInstallConfig\ninstaller: {image: "+newRef+"}\nprovisioning: {diskSelector: {match: disk.serial == \"system\"}}\n---\n")
	got["1.13's"] = apply(auto, "apiVersion: v1alpha1\nkind: EnvironmentConfig\nvariables: {A: b}\n---\n")
	got["1.14's"] = apply(auto, "apiVersion: v1alpha1\nkind: KernelModuleConfig\nname: nbd\n---\n")
	got["volume"] = apply(auto, "apiVersion: v1alpha1\nkind: VolumeConfig\nname: ETCD\nprovisioning: {diskSelector: {match: disk.serial == \"data\"}, minSize: 1GiB}\n---\n")
	return got
}
