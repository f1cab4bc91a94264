package pveapi

import (
	"maps"
	"slices"

	"github.com/recast-sh/recast/internal/sim/world"
)

func migrateRoutes() []route {
	const vm = "/nodes/{node}/qemu/{vmid}"
	return []route{
		{method: "GET", path: vm + "/migrate", params: []string{"target"}, handle: migratePreconditions},
		{
			method: "POST", path: vm + "/migrate", need: []string{"target"}, handle: migrate,
			params: []string{"target", "online", "force", "with-local-disks", "targetstorage", "migration_type", "migration_network", "bwlimit", "with-conntrack-state"},
		},
	}
}

func migrate(c *call) (any, error) {
	for _, name := range []string{"force", "migration_type", "migration_network"} {
		if c.params[name] != "" && c.params[name] != "0" && c.user != "root@pam" {
			return nil, world.BadParam(name, "Only root may use this option.")
		}
	}
	if c.params["targetstorage"] != "" {
		return nil, unsupported("migrate with targetstorage")
	}
	return c.Migrate(c.user, c.node(), world.MigrateRequest{
		ID: c.vmid(), Target: c.params["target"], Online: c.flag("online"), WithLocalDisks: c.flag("with-local-disks"),
	})
}

// migratePreconditions lists for every other host what it lacks.
func migratePreconditions(c *call) (any, error) {
	check, err := c.CheckMigration(c.user, c.node(), c.vmid())
	if err != nil {
		return nil, err
	}
	refused, mapped, disks := object{}, object{}, []object{}
	for _, host := range c.Hosts() {
		lacks := object{}
		if s := check.Storages[host]; len(s) > 0 {
			lacks["unavailable_storages"] = s
		}
		if m := check.Mappings[host]; len(m) > 0 && host != c.node() {
			lacks["unavailable-resources"] = m
		}
		if len(lacks) > 0 {
			refused[host] = lacks
		}
	}
	for key, name := range check.Mapped {
		mapped[key] = object{"name": name}
	}
	for _, d := range check.LocalDisks {
		disks = append(disks, object{
			"volid": d.Volid, "drivename": d.Key, "size": d.Size, "cdrom": bit(d.CDROM), "is_unused": bit(d.Unused), "is_attached": 1 - bit(d.Unused),
		})
	}
	out := object{
		"running": bit(check.Running), "allowed_nodes": orEmpty(check.Allowed), "not_allowed_nodes": refused, "local_disks": disks,
		"local_resources": orEmpty(check.Local), "mapped-resources": orEmpty(slices.Sorted(maps.Keys(check.Mapped))), "mapped-resource-info": mapped, "has-dbus-vmstate": 1,
	}
	if check.HAManaged {
		out["dependent-ha-resources"] = []string{}
	}
	return out, nil
}

// orEmpty is a list that is shown as [] if it is empty.
func orEmpty(list []string) []string { return append([]string{}, list...) }
