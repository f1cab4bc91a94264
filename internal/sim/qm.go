package sim

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/recast-sh/recast/internal/sim/world"
)

// Shell is root's shell on a Proxmox host, as far as a VM's disks need it. Like
// Proxmox's own commands it calls the API's functions as root@pam, who may do
// everything, and only for VMs of its own host (qemu-server, CLI/qm.pm).
type Shell struct {
	World *world.World
	Host  string
}

const rootUser = "root@pam"

// Shell is root's shell on a host.
func (l *Lab) Shell(host string) Shell { return Shell{World: l.World, Host: host} }

// Run runs a command and returns its output.
//
//	qm config|start|stop|unlock|destroy VMID
//	qm shutdown VMID [--timeout S] [--forceStop 1]
//	qm create|set VMID [--KEY VALUE …] [--delete KEY,…] [--force 1]
//	qm disk move VMID KEY --target-vmid VMID [--target-disk KEY]      also: qm move-disk
//	qm disk rescan --vmid VMID [--dryrun 1]                           also: qm rescan
//	ha-manager config
//	ha-manager add SID [--state STATE …]
//	ha-manager remove SID [--purge 0|1]
//	pvesh set /nodes/localhost/qemu/VMID/config --KEY VALUE …
//	pvesm list STORAGE [--vmid VMID]
func (s Shell) Run(args []string) (string, error) {
	c, err := parseCommand(args)
	if err != nil {
		return "", err
	}
	switch c.name {
	case "ha-manager":
		return s.haManager(c)
	case "pvesh":
		return s.pvesh(c)
	case "pvesm":
		return s.pvesm(c)
	case "qm":
		return s.qm(c)
	}
	return "", fmt.Errorf("%s: command not found", c.name)
}

// command is a parsed command line. Every option has a value.
type command struct {
	name    string
	words   []string
	options map[string]string
}

func parseCommand(args []string) (c command, err error) {
	if len(args) == 0 {
		return c, errors.New("no command")
	}
	c = command{name: args[0], options: map[string]string{}}
	for args = args[1:]; len(args) > 0; {
		name, isOption := strings.CutPrefix(args[0], "-")
		if !isOption {
			c.words = append(c.words, args[0])
			args = args[1:]
			continue
		}
		name, value, joined := strings.Cut(strings.TrimPrefix(name, "-"), "=")
		if args = args[1:]; !joined {
			if len(args) == 0 {
				//lint:ignore ST1005 Getopt::Long says so
				return c, fmt.Errorf("Option %s requires an argument", name)
			}
			value, args = args[0], args[1:]
		}
		if _, twice := c.options[name]; twice {
			return c, world.BadParam(name, "parameter specified more than once")
		}
		c.options[name] = value
	}
	return c, nil
}

func (c command) unknown() error {
	return fmt.Errorf("ERROR: unknown command '%s'", strings.Join(append([]string{c.name}, c.words...), " "))
}

// take removes an option and returns its value.
func (c command) take(name string) string {
	value := c.options[name]
	delete(c.options, name)
	return value
}

// done refuses options that the command does not have.
func (c command) done() error {
	for _, name := range slices.Sorted(maps.Keys(c.options)) {
		//lint:ignore ST1005 Getopt::Long says so
		return fmt.Errorf("Unknown option: %s\n400 unable to parse option", name)
	}
	return nil
}

func vmid(word string) (int, error) {
	id, err := strconv.Atoi(word)
	if err != nil || id < 100 {
		return 0, world.BadParam("vmid", "invalid format - value does not look like a valid VM ID\n")
	}
	return id, nil
}

// oldWords maps the former names of some commands to the present ones.
var oldWords = map[string][]string{"move-disk": {"disk", "move"}, "move_disk": {"disk", "move"}, "rescan": {"disk", "rescan"}}

func (s Shell) qm(c command) (string, error) {
	if len(c.words) > 0 {
		if words, ok := oldWords[c.words[0]]; ok {
			c.words = append(slices.Clone(words), c.words[1:]...)
		}
	}
	switch {
	case len(c.words) == 2 && c.words[0] == "disk" && c.words[1] == "rescan":
		return s.rescan(c)
	case len(c.words) == 4 && c.words[0] == "disk" && c.words[1] == "move":
		return s.moveDisk(c)
	case len(c.words) != 2:
		return "", c.unknown()
	}
	id, err := vmid(c.words[1])
	if err != nil {
		return "", err
	}
	switch c.words[0] {
	case "config":
		return s.config(c, id)
	case "create":
		return s.create(c, id)
	case "set":
		return s.set(c, id)
	case "unlock":
		return "", s.unlock(c, id)
	case "start", "stop", "shutdown", "destroy":
		return s.power(c, id)
	}
	return "", c.unknown()
}

func (s Shell) power(c command, id int) (string, error) {
	request := world.ShutdownRequest{ID: id}
	if c.words[0] == "shutdown" {
		seconds, err := strconv.Atoi(c.take("timeout"))
		if err != nil {
			seconds = 60
		}
		request.Timeout, request.ForceStop = time.Duration(seconds)*time.Second, c.take("forceStop") == "1"
	}
	if err := c.done(); err != nil {
		return "", err
	}
	var upid string
	var err error
	switch c.words[0] {
	case "start":
		upid, err = s.World.Start(rootUser, s.Host, id)
	case "stop":
		upid, err = s.World.Stop(rootUser, s.Host, id)
	case "shutdown":
		upid, err = s.World.Shutdown(rootUser, s.Host, request)
	default:
		upid, err = s.World.DestroyVM(rootUser, s.Host, world.DestroyRequest{ID: id})
	}
	return s.wait(upid, err)
}

// wait waits for a task, as the commands do, and returns its log.
func (s Shell) wait(upid string, err error) (string, error) {
	if err != nil {
		return "", err
	}
	t, ok := s.World.WaitTask(upid)
	switch {
	case !ok:
		return "", world.ErrClosed
	case t.ExitStatus != "OK" && !strings.HasPrefix(t.ExitStatus, "WARNINGS"):
		return lines(t.Log), errors.New(t.ExitStatus)
	}
	return lines(t.Log), nil
}

// shellMessage is an error as the commands print it, including messages about single
// parameters.
func shellMessage(err error) string {
	e, ok := errors.AsType[*world.Error](err)
	if !ok || len(e.Params) == 0 {
		return err.Error()
	}
	var text strings.Builder
	fmt.Fprintf(&text, "%d %s", e.Status, e.Message)
	for _, name := range slices.Sorted(maps.Keys(e.Params)) {
		text.WriteString("\n" + name + ": " + strings.TrimSpace(e.Params[name]))
	}
	return text.String()
}

func lines(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return strings.Join(list, "\n") + "\n"
}
