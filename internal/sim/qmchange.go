package sim

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/recast-sh/recast/internal/sim/world"
)

// config prints the configuration with pending changes applied and the description in
// one line (qm.pm, config).
func (s Shell) config(c command, id int) (string, error) {
	if err := c.done(); err != nil {
		return "", err
	}
	vm, err := s.World.LookupVM(s.Host, id)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	config := vm.Merged()
	for _, key := range slices.Sorted(maps.Keys(config)) {
		value := config[key]
		if key == "description" {
			value = encodeText(value)
		}
		fmt.Fprintf(&b, "%s: %s\n", key, value)
	}
	return b.String(), nil
}

// encodeText writes text in one line: control characters, non-ASCII, colons and percent
// signs become %XX (pve-common, ParseUtils.pm, encode_text).
func encodeText(text string) string {
	var b strings.Builder
	for _, c := range []byte(text) {
		if c < 0x20 || c > 0x7e || c == ':' || c == '%' {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

func (s Shell) create(c command, id int) (string, error) {
	request := world.CreateRequest{ID: id, Pool: c.take("pool"), Start: c.take("start") == "1"}
	if err := noKeyFile(c); err != nil {
		return "", err
	}
	request.Config = c.options
	upid, err := s.World.CreateVM(rootUser, s.Host, request)
	return s.wait(upid, err)
}

// noKeyFile refuses SSH keys: qm takes them as a file, which this shell lacks.
func noKeyFile(c command) error {
	if name, ok := c.options["sshkeys"]; ok {
		return fmt.Errorf("unable to open '%s' - No such file or directory", name)
	}
	return nil
}

func (s Shell) set(c command, id int) (string, error) {
	if err := noKeyFile(c); err != nil {
		return "", err
	}
	return s.change(c, id)
}

func (s Shell) change(c command, id int) (string, error) {
	request := world.ChangeRequest{ID: id, Force: c.take("force") == "1", Digest: c.take("digest")}
	for key := range strings.FieldsFuncSeq(c.take("delete"), func(r rune) bool { return strings.ContainsRune(",; ", r) }) {
		request.Delete = append(request.Delete, key)
	}
	request.Set = c.options
	var said strings.Builder
	fmt.Fprintf(&said, "update VM %d:", id)
	for _, key := range slices.Sorted(maps.Keys(request.Set)) {
		said.WriteString(" -" + key + " " + request.Set[key])
	}
	if len(request.Delete) > 0 {
		said.WriteString(" -delete " + strings.Join(request.Delete, ","))
	}
	if err := s.World.SetConfig(rootUser, s.Host, request); err != nil {
		return "", err
	}
	return said.String() + "\n", nil
}

func (s Shell) unlock(c command, id int) error {
	if err := c.done(); err != nil {
		return err
	}
	if _, err := s.World.LookupVM(s.Host, id); err != nil {
		return err
	}
	s.World.SetLock(id, "")
	return nil
}

func (s Shell) moveDisk(c command) (string, error) {
	id, err := vmid(c.words[2])
	if err != nil {
		return "", err
	}
	target, err := vmid(c.take("target-vmid"))
	if err != nil {
		return "", err
	}
	request := world.MoveRequest{ID: id, Disk: c.words[3], Target: target, TargetDisk: c.take("target-disk"), Digest: c.take("digest")}
	if err := c.done(); err != nil {
		return "", err
	}
	upid, err := s.World.MoveDisk(rootUser, s.Host, request)
	return s.wait(upid, err)
}

func (s Shell) rescan(c command) (string, error) {
	id, err := vmid(c.take("vmid"))
	if err != nil {
		return "", err
	}
	dry := c.take("dryrun") == "1"
	if err := c.done(); err != nil {
		return "", err
	}
	var said []string
	if dry {
		said = append(said, "NOTE: running in dry-run mode, won't write changes out!")
	}
	found, err := s.World.Rescan(s.Host, id, dry)
	return lines(append(append(said, "rescan volumes..."), found...)), err
}

// pvesh changes a VM's configuration by its API path.
func (s Shell) pvesh(c command) (string, error) {
	if len(c.words) != 2 || c.words[0] != "set" {
		return "", c.unknown()
	}
	parts := strings.Split(strings.Trim(c.words[1], "/"), "/")
	if len(parts) != 5 || parts[0] != "nodes" || parts[2] != "qemu" || parts[4] != "config" || parts[1] != "localhost" && parts[1] != s.Host {
		//lint:ignore ST1005 pvesh.pm says so
		return "", fmt.Errorf("No 'set' handler defined for '%s'", c.words[1])
	}
	id, err := vmid(parts[3])
	if err != nil {
		return "", err
	}
	return s.change(c, id)
}

// pvesm lists the volumes of a storage (pve-storage, CLI/pvesm.pm, list).
func (s Shell) pvesm(c command) (string, error) {
	if len(c.words) != 2 || c.words[0] != "list" {
		return "", c.unknown()
	}
	owner := 0
	if word := c.take("vmid"); word != "" {
		id, err := vmid(word)
		if err != nil {
			return "", err
		}
		owner = id
	}
	if err := c.done(); err != nil {
		return "", err
	}
	volumes, err := s.World.Volumes(c.words[1], s.Host)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%-32s %-7s %-9s %15s %s\n", "Volid", "Format", "Type", "Size", "VMID")
	for _, v := range volumes {
		if owner == 0 || v.Owner == owner {
			fmt.Fprintf(&b, "%-32s %-7s %-9s %15d %d\n", v.Volid, v.Format, v.Content, v.Size, v.Owner)
		}
	}
	return b.String(), nil
}

// haManager manages the resources of Proxmox HA (pve-ha-manager, CLI/ha_manager.pm).
func (s Shell) haManager(c command) (string, error) {
	switch {
	case len(c.words) == 1 && c.words[0] == "config":
		var b strings.Builder
		for _, r := range s.World.HA() {
			b.WriteString(r.SID + "\n")
			options := maps.Clone(r.Options)
			options["state"] = r.State
			if r.Group != "" {
				options["group"] = r.Group
			}
			for _, name := range slices.Sorted(maps.Keys(options)) {
				if options[name] != "" {
					fmt.Fprintf(&b, "\t%s %s\n", name, options[name])
				}
			}
			b.WriteString("\n")
		}
		return b.String(), c.done()
	case len(c.words) == 2 && c.words[0] == "add":
		return "", s.World.CreateHA(rootUser, c.words[1], c.options)
	case len(c.words) == 2 && c.words[0] == "remove":
		purge, err := strconv.ParseBool(c.take("purge"))
		if err := c.done(); err != nil {
			return "", err
		}
		return "", s.World.DeleteHA(rootUser, c.words[1], err != nil || purge)
	}
	return "", c.unknown()
}
