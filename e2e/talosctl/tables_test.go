package talosctl

// reads are the commands that change nothing.
func reads() []command {
	return []command{
		{line: "version --client", out: []string{`Tag: +v1\.14\.1`}},
		{line: "version -n {cp1}", out: []string{`Tag: +v1\.14\.1`, `NODE: +{cp1}`, `Tag: +v1\.13\.9`, `OS/Arch: +linux/amd64`, `Enabled: +RBAC`}},
		{line: "version -n {cp2},{wk1}", out: []string{`NODE: +{cp2}`, `NODE: +{wk1}`}},
		{line: "version -e {wk1} -n {cp1}", code: 1, errs: []string{`PermissionDenied desc = no request forwarding`}},
		{line: "get rd -n {cp1}", out: []string{`machinestatuses\.runtime\.talos\.dev`, `machineconfigs\.config\.talos\.dev`}},
		{line: "get nonsense -n {cp1}", code: 1, errs: []string{`resource "nonsense" is not registered`}},
		{line: "get members -n {cp1}", out: []string{`^{cp1} +cluster +Member +cp3 .* controlplane +Talos \(v1\.13\.9\)`, `wk2 .* worker `}},
		{line: "get members -n {wk1}", out: []string{`^{wk1} +cluster +Member +cp1 `}},
		{line: "get extensions -n {cp1}", out: []string{`ExtensionStatus +0 .* qemu-guest-agent`, `schematic +[0-9a-f]{64}`}},
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}},
		{line: "get machinestatus -n {cp1},{wk1}", out: []string{`^{cp1} +runtime +MachineStatus +machine +[0-9]+ +running +true`, `^{wk1} .* running +true`}},
		{line: "get machinestatus -n {cp1} -o yaml", out: []string{`^    stage: running`, `^        ready: true`}},
		{line: "get machinestatus machine -n {cp1} -o json", out: []string{`"stage": "running"`}},
		{line: "get disks -n {wk1}", out: []string{`Disk +sda .* 11 GB `, `data-wk1`}},
		{line: "get discoveredvolumes -n {wk1}", out: []string{`sda[0-9] .* META`, `sdb1 .* u-data`}},
		{line: "get volumestatus -n {wk1}", out: []string{`EPHEMERAL .* ready +/dev/sda`, `STATE .* ready`}},
		{line: "get systemdisk -n {wk1}", out: []string{`system-disk +[0-9]+ +sda`}},
		{line: "get machineconfig -n {wk1}", out: []string{`MachineConfig +v1alpha1`, `persistent`}},
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`^machine:`, `hostname: wk1`}, keep: "wk1.yaml"},
		{line: "get machineconfig v1alpha1 -n {wk2} -o jsonpath={.spec}", out: []string{`hostname: wk2`}, keep: "wk2.yaml"},
		{line: "get kernelcmdline -n {cp1}", out: []string{`KernelCmdline .*talos\.platform=nocloud`}},
		{line: "service -n {cp1}", out: []string{`^{cp1} +etcd +Running +OK +[0-9a-z]+ ago +Health check successful`, ` apid +Running`, ` kubelet +Running +OK`, `trustd`}, not: []string{`2562047h`}},
		{line: "service -n {wk1}", out: []string{` kubelet +Running +OK`}, not: []string{`etcd|trustd`}},
		{line: "service etcd -n {cp1}", out: []string{`^STATE +Running`, `^HEALTH +OK`, `^EVENTS .*Running`}},
		{line: "service nonsense -n {cp1}", code: 1, errs: []string{`service "nonsense" is not registered on any nodes`}},
		{line: "service kubelet restart -n {wk1}", out: []string{`Service "kubelet" restarted`}},
		{line: "service kubelet stop -n {wk1}", code: 1, errs: []string{`service "kubelet" doesn't support stop operation via API`}},
		{line: "service kubelet start -n {wk1}", out: []string{`Service "kubelet" started`}},
		{line: "service apid stop -n {wk1}", code: 1, errs: []string{`service "apid" doesn't support stop operation via API`}},
		{line: "etcd members -n {cp1}", out: []string{`^{cp1} +[0-9a-f]{16} +cp2 +https://{cp2}:2380 +https://{cp2}:2379 +false`}},
		{line: "etcd members -n {wk1}", code: 1, errs: []string{`member list is only available on control plane nodes`}},
		{line: "etcd status -n {cp1},{cp2},{cp3}", out: []string{`^{cp3} +[0-9a-f]{16} .* +3\.[0-9]+\.[0-9]+ `}},
		{line: "etcd alarm list -n {cp1}"},
		{line: "etcd snapshot {dir}/db -n {cp1}", out: []string{`etcd snapshot saved to`, `snapshot info: hash [0-9a-f]{8}, revision [1-9]`}},
		{line: "dmesg -n {cp1}", out: []string{`^{cp1}: kern: +(info|notice): \[[^\]]+\]: Linux version `, `^{cp1}: user: warning: \[[^\]]+\]: \[talos\] machine is running and ready`}},
		{line: "kubeconfig --merge=false --force {dir}/kube -n {cp1}"},
		{line: "kubeconfig --merge=false -n {cp1} -", out: []string{`server: https://`, `name: admin@lab`}},
		{line: "kubeconfig --merge=false -n {wk1} -", code: 1, errs: []string{`kubeconfig is only available on control plane nodes`}},
		{line: "bootstrap -n {cp1}", code: 1, errs: []string{`AlreadyExists.*etcd data directory is not empty`}},
	}
}

// roles are what a client with another certificate may do.
func roles() []command {
	return []command{
		{line: "config new {dir}/reader --roles os:reader -n {cp1}"},
		{line: "config new {dir}/operator --roles os:operator --crt-ttl 1h -n {cp1}"},
		{line: "config new {dir}/other --roles os:reader -n {wk1}", code: 1, errs: []string{`generate client configuration is only available on control plane nodes`}},
		{line: "config info --talosconfig {dir}/reader", out: []string{`Roles: +os:reader`, `Endpoints: +{cp1}`}},
		{line: "version --talosconfig {dir}/reader -n {wk1}", out: []string{`v1\.13\.9`}},
		{line: "get members --talosconfig {dir}/reader -n {cp2}", out: []string{`cp3`}},
		{line: "get machineconfig --talosconfig {dir}/reader -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "kubeconfig - --merge=false --talosconfig {dir}/reader -n {cp1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "reboot --wait=false --talosconfig {dir}/reader -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "apply-config -f {dir}/wk1.yaml --talosconfig {dir}/reader -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "etcd snapshot {dir}/no --talosconfig {dir}/reader -n {cp1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "etcd forfeit-leadership --talosconfig {dir}/operator -n {cp1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "etcd snapshot {dir}/operators --talosconfig {dir}/operator -n {cp1}", out: []string{`etcd snapshot saved to`}},
		{line: "reset --talosconfig {dir}/operator -n {wk1}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "version -i -n {wk1}", code: 1, errs: []string{`error getting version from node {wk1}: .*code = Unavailable`}},
	}
}

// configuration are the ways to change a running machine's.
func configuration() []command {
	return []command{
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --dry-run", errs: []string{`Dry run summary:`, `No changes\.`}},
		{line: "apply-config -f {dir}/wk2.yaml -n {wk1} --dry-run", errs: []string{`Config diff:`, `^-hostname: wk1`, `^\+hostname: wk2`}},
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1}", errs: []string{`Applied configuration without a reboot`}},
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --mode staged", errs: []string{`Staged configuration to be applied after the next reboot`}},
		{line: "apply-config -f {dir}/kube -n {wk1}", code: 1, errs: []string{`InvalidArgument|error decoding`}},
		{line: `patch mc -n {wk1} --patch {"machine":{"sysctls":{"vm.swappiness":"1"}}}`, errs: []string{`patched MachineConfigs\.config\.talos\.dev/v1alpha1 at the node {wk1}`}},
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`vm.swappiness: "1"`}},
	}
}

// health are the ways to ask whether the cluster is well.
func health() []command {
	all := []string{
		`etcd to be healthy: OK`, `etcd members to be consistent across nodes: OK`, `etcd members to be control plane nodes: OK`, `apid to be ready: OK`,
		`all nodes memory sizes: OK`, `all nodes disk sizes: OK`, `no diagnostics: OK`, `kubelet to be healthy: OK`, `all nodes to finish boot sequence: OK`,
		`all k8s nodes to report: OK`, `all control plane static pods to be running: OK`, `all control plane components to be ready: OK`,
		`all k8s nodes to report ready: OK`, `all k8s nodes to report schedulable: OK`,
	}
	return []command{
		{line: "health -n {cp1} --wait-timeout 20s", errs: append([]string{`discovered nodes: \[.*"{cp1}"`}, all...)},
		{line: "health -n {cp1} --wait-timeout 20s --server=false", errs: all},
		{line: "health -n {wk1} --wait-timeout 20s", code: 1, errs: []string{`cluster health check is only available on control plane nodes`}},
	}
}

// lifecycle are the commands after which a machine is another one for a while.
func lifecycle(installer string) []command {
	return []command{
		{line: "reboot -n {wk1}", errs: []string{`actor ID: `, `events check condition met`, `post check passed`}},
		{line: "reboot --drain -m powercycle -n {wk1}", errs: []string{`node drained`, `post check passed`, `node uncordoned`}},
		{line: "upgrade -n {wk1} --image " + installer, errs: []string{`upgrade completed`, `node drained`, `post check passed`, `node uncordoned`}},
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}},
		{line: "read /proc/sys/kernel/random/boot_id -n {wk1}", out: []string{`[0-9a-f-]{36}`}, keep: "boot"},
		{line: "rollback -n {wk1}"},
		{line: "read /proc/sys/kernel/random/boot_id -n {wk1}", out: []string{`[0-9a-f-]{36}`}, unlike: "boot", within: boots},
		{line: "get machinestatus -n {wk1}", out: []string{`running +true`}, within: boots},
		{line: "upgrade --legacy -n {wk1} --image " + installer, errs: []string{`post check passed`}, within: boots},
		{line: "upgrade -n {wk1} --image " + installer + "-nothing", code: 1, errs: []string{`error pulling upgrade image`}},
		{line: "shutdown -n {wk2}", errs: []string{`events check condition met`}},
	}
}

// maintenance puts wk2 into maintenance mode and brings it back.
func maintenance() []command {
	return []command{
		{line: "reset -n {wk2} --system-labels-to-wipe STATE --reboot", errs: []string{`post check passed`}},
		{line: "get machinestatus -i -n {wk2}", out: []string{`maintenance +true`}, within: boots},
		{line: "version -i -n {wk2}", out: []string{`v1\.13\.9`}},
		{line: "get disks -i -n {wk2}", out: []string{`data-wk2`}},
		{line: "get systeminformation -i -n {wk2} -o yaml", out: []string{`uuid: 5ec0ffee-`}},
		{line: "get machineconfig -i -n {wk2}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "service -i -n {wk2}", out: []string{`apid +Running`}},
		{line: "dmesg -i -n {wk2}", out: []string{`Linux version`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml --dry-run", errs: []string{`Dry run summary:`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml"},
		{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots},
	}
}

// etcd are the commands that change its members; the last takes cp3 away for good.
func etcd() []command {
	return []command{
		{line: "etcd forfeit-leadership -n {cp1}"},
		{line: "etcd remove-member -n {cp1} 00000000deadbeef", code: 1, errs: []string{`NotFound`}},
		{line: "etcd leave -n {cp3}"},
		{line: "etcd members -n {cp1}", out: []string{`cp2`}, not: []string{` cp3 `}},
		{line: "reset -n {cp3} --graceful=false", errs: []string{`events check condition met`}},
		{line: "version -n {cp3}", code: 1, errs: []string{`Unavailable|DeadlineExceeded`}, within: boots},
	}
}
