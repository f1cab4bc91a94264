package talosctl

import "slices"

// reads are the read-only commands.
func reads() []command {
	return []command{
		{line: "version --client", out: []string{`Tag: +v1\.14\.1`}},
		{line: "version -n {cp1}", out: []string{`Tag: +v1\.14\.1`, `NODE: +{cp1}`, `Tag: +{talos}`, `OS/Arch: +linux/amd64`, `Enabled: +RBAC`}},
		{line: "version -n {cp2},{wk1}", out: []string{`NODE: +{cp2}`, `NODE: +{wk1}`}},
		{line: "version -e {wk1} -n {cp1}", code: 1, errs: []string{`PermissionDenied desc = no request forwarding`}},
		{line: "get rd -n {cp1}", out: []string{`machinestatuses\.runtime\.talos\.dev`, `machineconfigs\.config\.talos\.dev`}},
		{line: "get nonsense -n {cp1}", code: 1, errs: []string{`resource "nonsense" is not registered`}},
		{line: "get members -n {cp1}", out: []string{`^{cp1} +cluster +Member +cp3 .* controlplane +Talos \({talos}\)`, `wk2 .* worker `}},
		{line: "get members -n {wk1}", out: []string{`^{wk1} +cluster +Member +cp1 `}},
		{line: "get extensions -n {cp1}", out: []string{`ExtensionStatus +0 .* qemu-guest-agent`, `schematic +[0-9a-f]{64}`}},
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}},
		{line: "get machinestatus -n {cp1},{wk1}", out: []string{`^{cp1} +runtime +MachineStatus +machine +[0-9]+ +running +true`, `^{wk1} .* running +true`}},
		{line: "get machinestatus -n {cp1} -o yaml", out: []string{`^    stage: running`, `^        ready: true`}},
		{line: "get machinestatus machine -n {cp1} -o json", out: []string{`"stage": "running"`}},
		{line: "get disks -n {wk1}", out: []string{`Disk +sda .* 11 GB `, `Disk +sdb .* 22 GB .* virtio .* QEMU HARDDISK *`}},
		{line: "get discoveredvolumes -n {wk1}", out: []string{`sda[0-9] .* META`, `sdb1 .* u-data`}},
		{line: "get volumestatus -n {wk1}", out: []string{`EPHEMERAL .* ready +/dev/sda`, `STATE .* ready`}},
		{line: "get systemdisk -n {wk1}", out: []string{`system-disk +[0-9]+ +sda`}},
		{line: "get machineconfig -n {wk1}", out: []string{`MachineConfig +v1alpha1`}, not: []string{`persistent`}},
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`^machine:`, `hostname: wk1`}, keep: "wk1.yaml"},
		{line: "get machineconfig v1alpha1 -n {wk2} -o jsonpath={.spec}", out: []string{`hostname: wk2`}, keep: "wk2.yaml"},
		{line: "get kernelcmdline -n {cp1}", out: []string{`KernelCmdline .*talos\.platform=nocloud`}},
		{line: "service -n {cp1}", out: []string{`^{cp1} +etcd +Running +OK +[0-9a-z]+ ago +Health check successful`, ` apid +Running`, ` auditd +Running +OK`, ` dashboard +Running +\?`, ` kubelet +Running +OK`, `trustd`}, not: []string{`2562047h`}},
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
		{line: "dmesg -n {cp1}", out: []string{`^{cp1}: kern: +(info|notice): \[[^\]]+\]: Linux version `, `^{cp1}: user: warning: \[[^\]]+\]: \[talos\] machine is running and ready`, `\[talos\] phase startEverything \(9/9\): done, `, `\[talos\] service\[etcd\]\(Running\): Health check successful`}},
		{line: "kubeconfig --merge=false --force {dir}/kube -n {cp1}"},
		{line: "kubeconfig --merge=false -n {cp1} -", out: []string{`server: https://`, `name: admin@lab`}},
		{line: "kubeconfig --merge=false -n {wk1} -", code: 1, errs: []string{`kubeconfig is only available on control plane nodes`}},
		{line: "bootstrap -n {cp1}", code: 1, errs: []string{`AlreadyExists.*etcd data directory is not empty`}},
		{line: "bootstrap -n {wk1}", code: 1, errs: []string{`bootstrap (can only be performed on a|is only available on) control plane node`}},
	}
}

// insides are further reads of a machine: its logs, processes and network.
func insides() []command {
	return []command{
		{line: "logs machined -n {cp1}", out: []string{`^{cp1}: \d+/\d+/\d+ [0-9:.]+ boot sequence: 9 phase\(s\)$`, `service\[etcd\]\(Running\): Health check successful`}},
		{line: "logs machined --tail 0 -n {cp1}", not: []string{`.`}},
		{line: "logs kernel -n {wk1}", out: []string{`Linux version`}},
		{line: "logs etcd -n {cp1}", out: []string{`"msg":"ready to serve client requests"`}},
		{line: "logs kubelet -n {wk1}"},
		{line: "logs nonsense -n {cp1}", code: 1, errs: []string{`log "nonsense" was not registered`}},
		{line: "logs -k nonsense -n {cp1}", code: 1, errs: []string{`container "nonsense" not found`}},
		{line: "logs -k kube-system/kube-apiserver-cp1 -n {cp1}"},
		{line: "containers -n {cp1}", out: []string{`^{cp1} +system +apid .* RUNNING`, ` trustd `}},
		{line: "containers -k -n {cp1}", out: []string{`k8s.io +kube-system/kube-apiserver-cp1 .* SANDBOX_READY`, `kube-system/kube-apiserver-cp1:kube-apiserver:[0-9a-f]{12} +registry.k8s.io/kube-apiserver:v.* CONTAINER_RUNNING`}},
		{line: "processes -n {wk1}", out: []string{`^{wk1} +1 +S .* /sbin/init`, `/usr/local/bin/kubelet`}, not: []string{`/etcd`}},
		{line: "memory -n {wk1}", out: []string{`^{wk1} +[0-9]+ +[0-9]+ `}},
		{line: "mounts -n {wk1}", out: []string{`^{wk1} +/dev/sda[0-9] +[0-9.]+ .* /var$`}},
		{line: "image list -n {wk1}"},
		{line: "image list --namespace system -n {wk1}"},
		{line: "get mounts -n {wk1}", out: []string{`MountStatus +EPHEMERAL .* /var +xfs`}},
		{line: "get addresses -n {wk1}", out: []string{`AddressStatus +eth0/{wk1}/24 `}},
		{line: "get links -n {wk1}", out: []string{`LinkStatus +eth0 .* ether .* up `}},
		{line: "get routes -n {wk1}", out: []string{`RouteStatus .* eth0 `}},
		{line: "get nodeips -n {wk1} -o yaml", out: []string{`- {wk1}`}},
		{line: "get hostnamestatus -n {wk1}", out: []string{`HostnameStatus +hostname .* wk1`}},
		{line: "get nodename -n {wk1}", out: []string{`Nodename +nodename .* wk1`}},
		{line: "get affiliates -n {wk1}", out: []string{`Affiliate .* cp1 `}},
		{line: "get services -n {wk1}", out: []string{`Service +kubelet +[0-9]+ +true +true`}},
		{line: "get etcdmembers -n {cp1} -o yaml", out: []string{`memberID: `}},
		{line: "get metakeys -n {wk1}"},
	}
}

// roles are the permissions of clients with other certificates.
func roles() []command {
	return []command{
		{line: "config new {dir}/reader --roles os:reader -n {cp1}"},
		{line: "config new {dir}/operator --roles os:operator --crt-ttl 1h -n {cp1}"},
		{line: "config new {dir}/other --roles os:reader -n {wk1}", code: 1, errs: []string{`generate client configuration is only available on control plane nodes`}},
		{line: "config info --talosconfig {dir}/reader", out: []string{`Roles: +os:reader`, `Endpoints: +{cp1}`}},
		{line: "version --talosconfig {dir}/reader -n {wk1}", out: []string{`{talos}`}},
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
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --mode try --timeout 1h", errs: []string{`Applied configuration without a reboot`, `in 'try' mode and will be automatically reverted back in 1h0m0s`}},
		{line: "apply-config -f {dir}/wk1.yaml -n {wk1} --mode no-reboot", errs: []string{`Applied configuration without a reboot`}},
		{line: "apply-config -f {dir}/kube -n {wk1}", code: 1, errs: []string{`InvalidArgument|error decoding`}},
		{line: `patch mc -n {wk1} --patch {"machine":{"sysctls":{"vm.swappiness":"1"}}}`, errs: []string{`patched MachineConfigs\.config\.talos\.dev/v1alpha1 at the node {wk1}`}},
		{line: "get machineconfig v1alpha1 -n {wk1} -o jsonpath={.spec}", out: []string{`vm.swappiness: "1"`}},
	}
}

// health are the ways to check the cluster's health.
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

// lifecycle are the commands that take a machine down for a while.
func lifecycle(installer string) []command {
	return slices.Concat([]command{
		{line: "reboot -n {wk1}", errs: []string{`actor ID: `, `events check condition met`, `post check passed`}},
		{line: "reboot --drain -m powercycle -n {wk1}", errs: []string{`node drained`, `post check passed`, `node uncordoned`}},
		{line: "upgrade -n {wk1} --image " + installer, errs: []string{`upgrade completed`, `node drained`, `post check passed`, `node uncordoned`}},
	}, rollback(), []command{
		{line: "upgrade --legacy -n {wk1} --image " + installer, errs: []string{`phase: drain action: START`, `task: upgrade action: STOP`, `post check passed`}, within: boots},
		{line: "upgrade -n {wk1} --image " + installer + "-nothing", code: 1, errs: []string{`error pulling upgrade image`}},
		{line: "shutdown --wait=false -n {wk2}"},
		{line: "version -n {wk2}", code: 1, errs: []string{`Unavailable|DeadlineExceeded`}, within: boots},
	})
}

// legacy is lifecycle for a machine with only the old API.
func legacy(installer string) []command {
	return slices.Concat([]command{
		{line: "reboot -n {wk1}", errs: []string{`actor ID: `, `events check condition met`, `post check passed`}},
		{line: "upgrade -n {wk1} --image " + installer, errs: []string{`New upgrade API is not available, falling back to legacy`, `sequence: upgrade action: START`, `post check passed`}},
	}, rollback(), []command{
		{line: "upgrade -n {wk1} --image " + installer + "-nothing", code: 1, errs: []string{`error validating installer image .*: not found`}},
		{line: "shutdown --wait=false -n {wk2}"},
		{line: "version -n {wk2}", code: 1, errs: []string{`Unavailable|DeadlineExceeded`}, within: boots},
	})
}

// rollback boots the other entry of an upgraded machine.
func rollback() []command {
	return []command{
		{line: "get extensions -n {wk1}", out: []string{`iscsi-tools`}},
		{line: "read /proc/sys/kernel/random/boot_id -n {wk1}", out: []string{`[0-9a-f-]{36}`}, keep: "boot"},
		{line: "rollback -n {wk1}"},
		{line: "read /proc/sys/kernel/random/boot_id -n {wk1}", out: []string{`[0-9a-f-]{36}`}, unlike: "boot", within: boots},
		{line: "get machinestatus -n {wk1}", out: []string{`running +true`}, within: boots},
	}
}

// maintenance puts wk2 into maintenance mode and brings it back. Control planes that
// failed to connect to it back off for a while, each on its own: talosctl uses any of
// them.
func maintenance() []command {
	return []command{
		{line: "reset -n {wk2} --system-labels-to-wipe STATE --reboot --wait=false", within: boots},
		{line: "get machinestatus -i -n {wk2}", out: []string{`maintenance +true`}, within: boots},
		{line: "version -i -n {wk2}", out: []string{`{talos}`}},
		{line: "get disks -i -n {wk2}", out: []string{`Disk +sda .* 11 GB .* virtio .* QEMU HARDDISK *`}},
		{line: "get systeminformation -i -n {wk2} -o yaml", out: []string{`uuid: 5ec0ffee-`}},
		{line: "get machineconfig -i -n {wk2}", code: 1, errs: []string{`PermissionDenied.*not authorized`}},
		{line: "service -i -n {wk2}", out: []string{`apid +Running`}},
		{line: "dmesg -i -n {wk2}", out: []string{`Linux version`}},
		{line: "logs machined -i -n {wk2}", out: []string{`phase config \([0-9]/[0-9]\): 1 tasks\(s\)`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml --mode staged", errs: []string{`Staged configuration to be applied after the next reboot`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml --dry-run", errs: []string{`Dry run summary:`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml"},
		{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots},
	}
}

// bareMaintenance is maintenance with Talos 1.12's separate service: it reports its
// version only to SideroLink, and talosctl first asks for that.
func bareMaintenance() []command {
	unimplemented := []string{`Unimplemented desc = API is not implemented in maintenance mode`}
	return []command{
		{line: "reset -n {wk2} --system-labels-to-wipe STATE --reboot --wait=false", within: boots},
		{line: "version -i -n {wk2}", code: 1, errs: unimplemented, within: boots},
		{line: "get disks -i -n {wk2}", code: 1, errs: unimplemented},
		{line: "service -i -n {wk2}", code: 1, errs: []string{`Unimplemented`}},
		{line: "dmesg -i -n {wk2}", code: 1, errs: []string{`Unimplemented`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml --dry-run", errs: []string{`Node is running in maintenance mode and does not have a config yet`}},
		{line: "apply-config -i -n {wk2} -f {dir}/wk2.yaml"},
		{line: "get machinestatus -n {wk2}", out: []string{`running +true`}, within: boots},
	}
}

// kubernetes upgrades Kubernetes to a version that this release of Talos supports, and is
// refused invalid upgrades; unsupported is one that this release does not know, "" if
// there is none one step away.
func kubernetes(to, unsupported string) []command {
	all := []command{
		{line: "upgrade-k8s -n {wk1} --to " + to, code: 1, errs: []string{`kubeconfig is only available on control plane nodes`}},
		{line: "upgrade-k8s -n {cp1} --to 1.37.1", code: 1, errs: []string{`unsupported upgrade path 1\.35->1\.37 \(from "1\.35\.4" to "1\.37\.1"\)`}},
		{line: "upgrade-k8s -n {cp1} --to 1.34.6", code: 1, errs: []string{`unsupported upgrade path 1\.35->1\.34`}},
		{line: "upgrade-k8s -n {cp1} --to 1.35.66", code: 1, errs: []string{`failed pre-pulling images: .* registry\.k8s\.io/kube-apiserver:v1\.35\.66: not found`}},
		{line: "get kubeletspec -n {wk1} -o yaml", out: []string{`image: ghcr\.io/siderolabs/kubelet:v1\.35\.4`}},
		{
			line: "upgrade-k8s -n {cp1} --dry-run --to " + to,
			out: []string{
				`automatically detected the lowest Kubernetes version 1\.35\.4`, `update kube-apiserver: 1\.35\.4 -> ` + to, `update kubelet: 1\.35\.4 -> ` + to,
				`skipped in dry-run`,
			},
		},
		{line: "get kubeletspec -n {wk1} -o yaml", out: []string{`image: ghcr\.io/siderolabs/kubelet:v1\.35\.4`}},
		{line: "get staticpods kube-apiserver -n {cp2} -o yaml", out: []string{`image: registry\.k8s\.io/kube-apiserver:v1\.35\.4`}},
		{line: "upgrade-k8s -n {cp1} --to " + to, out: []string{
			`pre-pulling registry\.k8s\.io/kube-scheduler:v` + to, `kube-apiserver: waiting, config version mismatch: got "1", expected "2"`,
			`kube-scheduler: pod is not ready, waiting`, `waiting for kubelet restart`, `< "{wk2}": successfully updated`,
		}, not: []string{`skipped in dry-run`}},
		{line: "get kubeletspec -n {wk1} -o yaml", out: []string{`image: ghcr\.io/siderolabs/kubelet:v` + to}},
		{line: "get staticpods kube-apiserver -n {cp2} -o yaml", out: []string{`image: registry\.k8s\.io/kube-apiserver:v` + to, `talos\.dev/config-version: "2"`}},
		{line: "get manifests 10-kube-proxy -n {cp3} -o yaml", out: []string{`image: registry\.k8s\.io/kube-proxy:v` + to}},
		{line: "containers -k -n {cp3}", out: []string{` registry\.k8s\.io/kube-scheduler:v` + to + ` .* CONTAINER_RUNNING`}},
		{line: "get services kubelet -n {wk1}", out: []string{`Service +kubelet +[0-9]+ +true +true`}},
		{line: "upgrade-k8s -n {cp1} --to " + to, out: []string{`automatically detected the lowest Kubernetes version ` + to}, not: []string{`update kube-apiserver: `, `waiting for kubelet restart`, `^\+ `}},
		{line: "health -n {cp1} --wait-timeout 20s --server=false", errs: []string{`kube-proxy to report ready: OK`, `coredns to report ready: OK`}},
		{line: "image k8s-bundle --k8s-version v" + to, out: []string{`^registry\.k8s\.io/kube-proxy:v` + to}},
	}
	if unsupported != "" {
		all = append(all, command{line: "upgrade-k8s -n {cp1} --to " + unsupported, code: 1, errs: []string{`version of Kubernetes ` + unsupported + ` is too new to be used with Talos`}})
	}
	return all
}

// etcd are the commands that change its members; the last removes cp3 for good.
func etcd() []command {
	return []command{
		{line: "etcd forfeit-leadership -n {cp1}"},
		{line: "etcd alarm disarm -n {cp1}"},
		{line: "etcd defrag -n {cp1}"},
		{line: "etcd defrag -n {wk1}", code: 1, errs: []string{`etcd defragment is only available on control plane nodes`}},
		{line: "etcd remove-member -n {cp1} 00000000deadbeef", code: 1, errs: []string{`NotFound`}},
		{line: "etcd leave -n {cp3}"},
		{line: "etcd members -n {cp1}", out: []string{`cp2`}, not: []string{` cp3 `}},
		{line: "reset -n {cp3} --graceful=false --wait=false"},
		{line: "version -n {cp3}", code: 1, errs: []string{`Unavailable|DeadlineExceeded`}, within: boots},
	}
}
