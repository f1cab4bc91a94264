package pveapi

import (
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

// options are the parameters for the VM's configuration.
func (c *call) options() map[string]string {
	set := maps.Clone(c.params)
	maps.DeleteFunc(set, func(name, _ string) bool { return !world.IsOption(name) })
	return set
}

func unsupported(what string) error {
	return &world.Error{Status: http.StatusNotImplemented, Message: what + " is not something this simulator can do"}
}

func createVM(c *call) (any, error) {
	for _, name := range []string{"archive", "ha-managed", "force", "unique", "live-restore"} {
		if c.params[name] != "" && c.params[name] != "0" {
			return nil, unsupported("create with " + name)
		}
	}
	return c.CreateVM(c.user, c.node(), world.CreateRequest{
		ID: c.vmid(), Config: c.options(), Pool: c.params["pool"], Start: c.flag("start"),
	})
}

func destroyVM(c *call) (any, error) {
	return c.DestroyVM(c.user, c.node(), world.DestroyRequest{
		ID: c.vmid(), Purge: c.flag("purge"), Unreferenced: c.flag("destroy-unreferenced-disks"),
	})
}

func (c *call) changeRequest() world.ChangeRequest {
	return world.ChangeRequest{
		ID: c.vmid(), Set: c.options(), Delete: list(c.params["delete"]), Revert: list(c.params["revert"]),
		Digest: c.params["digest"], Force: c.flag("force"),
	}
}

// list splits "scsi1,scsi2"; like Proxmox also at blanks and semicolons.
func list(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' || r == ';' || r == ' ' })
}

func setConfig(c *call) (any, error) {
	return nil, c.SetConfig(c.user, c.node(), c.changeRequest())
}

func setConfigTask(c *call) (any, error) {
	return c.SetConfigTask(c.user, c.node(), c.changeRequest())
}

func start(c *call) (any, error) { return c.Start(c.user, c.node(), c.vmid()) }
func stop(c *call) (any, error)  { return c.Stop(c.user, c.node(), c.vmid()) }
func reset(c *call) (any, error) { return c.Reset(c.user, c.node(), c.vmid()) }

func shutdown(c *call) (any, error) {
	return c.Shutdown(c.user, c.node(), world.ShutdownRequest{
		ID: c.vmid(), Timeout: time.Duration(c.number("timeout", 0)) * time.Second, ForceStop: c.flag("forceStop"),
	})
}

func moveDisk(c *call) (any, error) {
	if c.params["storage"] != "" && c.params["target-vmid"] != "" {
		return nil, badTarget("either set 'storage' or 'target-vmid', but not both")
	}
	if c.params["storage"] == "" && c.params["target-vmid"] == "" {
		return nil, badTarget("both 'storage' and 'target-vmid' missing, either needs to be set")
	}
	if c.params["target-vmid"] == "" {
		return nil, unsupported("moving a disk to another storage")
	}
	return c.MoveDisk(c.user, c.node(), world.MoveRequest{
		ID: c.vmid(), Disk: c.params["disk"], Target: c.number("target-vmid", 0), TargetDisk: c.params["target-disk"],
		Digest: c.params["digest"], TargetDigest: c.params["target-digest"],
	})
}

func badTarget(problem string) error {
	return &world.Error{
		Status: http.StatusBadRequest, Message: "Parameter verification failed.", Params: map[string]string{"storage": problem, "target-vmid": problem},
	}
}

func resize(c *call) (any, error) {
	return c.Resize(c.user, c.node(), world.ResizeRequest{
		ID: c.vmid(), Disk: c.params["disk"], Size: c.params["size"], Digest: c.params["digest"],
	})
}
