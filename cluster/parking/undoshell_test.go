package parking

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// proxmoxCommands are stand-ins for the commands of a Proxmox host, by name.
var proxmoxCommands = map[string]string{
	"qm": `case "$1 $2" in
"config 9011") printf '%s\n' 'description: a%3A b' 'scsi1: data:9011/vm-9011-disk-1.raw,serial=a' 'scsi10: data:9011/vm-9011-disk-5.raw' 'unused0: data:9011/vm-9011-disk-7.raw' ;;
"config 9900") echo 'scsi30: data:9900/vm-9900-disk-0.raw' ;;
"config 404") echo "Configuration file 'nodes/pve1/qemu-server/404.conf' does not exist" >&2; exit 2 ;;
"disk rescan") [ "$4 $5 $6" = '9011 --dryrun 1' ] || exit 1
	printf '%s\n' "NOTE: running in dry-run mode, won't write changes out!" 'rescan volumes...'
	printf "VM 9011 add unreferenced volume '%s' as 'unused1' to config\n" data:9011/vm-9011-disk-3.raw data:9011/vm-9011-disk-4.raw fast:vm-9011-disk-0 ;;
*) echo "qm $*" ;;
esac`,
	"pvesm": `[ "$2" != away ] || exit 255
echo 'Volid                         Format  Type             Size VMID'
[ "$2" = empty ] || echo 'data:9011/vm-9011-disk-1.raw  raw     images     1073741824 9011'`,
	"ha-manager": `printf 'vm:9011\n\tstate started\n\nvm:90112\n\tstate stopped\n'`,
}

// TestShellFunctions runs the functions of the undo commands in a real shell.
func TestShellFunctions(t *testing.T) {
	t.Parallel()
	bin := t.TempDir()
	for name, body := range proxmoxCommands {
		if err := os.WriteFile(filepath.Join(bin, name), []byte("#!/bin/sh\n"+body+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	var functions strings.Builder
	for _, f := range shellFunctions {
		functions.WriteString(strings.NewReplacer("PARKING", "9900", "VMID", "9011").Replace(f.body) + "\n")
	}
	const volumes = "data:9011/vm-9011-disk-"
	tests := map[string]struct {
		want string // what it prints
		no   bool   // it fails
	}{
		"has 9011":                               {},
		"has 404":                                {no: true},
		"lacks 404 scsi1:":                       {},
		"lacks 9011 scsi1:":                      {no: true},
		"has 9011 scsi0:":                        {no: true},
		`has 9011 'scsi1:.*serial=a'`:            {},
		`has 9011 'scsi1: ` + volumes + `1\b'`:   {},
		`has 9011 'unused[0-9]*: data.*7.raw\b'`: {},
		"vol 9011 scsi1":                         {want: volumes + "1.raw"},
		"vol 9011 scsi10":                        {want: volumes + "5.raw"},
		"key 9011 " + volumes + "7.raw":          {want: "unused0"},
		"lost 9011 data":                         {want: volumes + "3.raw\n" + volumes + "4.raw"},
		"lost 9011 data " + volumes + "3.raw":    {want: volumes + "4.raw"},
		`lost 9011 data "$(printf %b '` + volumes + `3.raw\n` + volumes + `4.raw')"`: {no: true},
		"lost 9011 fast":             {want: "fast:vm-9011-disk-0"},
		"lost 9011 slow":             {no: true},
		"gone " + volumes + "1.raw":  {no: true},
		"gone " + volumes + "10.raw": {},
		"gone empty:9011/a.raw":      {},
		"gone away:9011/a.raw":       {no: true}, // the storage can't be read
		"ha 9011":                    {},
		"ha 901":                     {no: true},
		"back scsi30 scsi0":          {want: "qm disk move 9900 scsi30 --target-vmid 9011 --target-disk scsi0"},
		"back scsi1":                 {},
	}
	for call, test := range tests {
		t.Run(call, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", functions.String()+call)
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); got != test.want || (err != nil) != test.no {
				t.Errorf("%q, %v", got, err)
			}
		})
	}
}
