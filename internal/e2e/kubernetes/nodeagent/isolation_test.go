package nodeagent_test

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// isolation looks at a container as the strictest policy of Kubernetes wants it.
func (w world) isolation() {
	w.objects("looks")
	s := w.restricted("looks")
	got := w.look("looks", s)
	if got.UID != 65532 || got.GID != 65533 || !slices.Contains(got.Groups, 65534) {
		w.Errorf("user %d, group %d, groups %d", got.UID, got.GID, got.Groups)
	}
	if got.PID != 1 || got.Hostname != "looks" || got.Dir != "/work" {
		w.Errorf("process %d on %s in %s", got.PID, got.Hostname, got.Dir)
	}
	if want := []string{"program", "look"}; !slices.Equal(got.Args[:2], want) {
		w.Errorf("arguments %q", got.Args)
	}
	for file, want := range map[string]string{
		">/new":                      "open /new: read-only file system",
		">/tmp/new":                  "written",
		">/memory/new":               "written",
		">/config/new":               "open /config/new: read-only file system",
		"/config/greeting":           "hello",
		"/config/nested/other":       "world",
		"/one/greeting":              "hello",
		"/secret/password":           "s3cret",
		"/info/labels":               `app="looks"`,
		"/etc/hostname":              "looks\n",
		">/proc/sys/kernel/hostname": "open /proc/sys/kernel/hostname: read-only file system",
		"/root":                      "open /root: no such file or directory",
		">" + programPath:            "open " + programPath + ": read-only file system",
		"/proc/1/comm":               "program\n",
		"/proc/2/comm":               "open /proc/2/comm: no such file or directory",
	} {
		if got := got.Files[file]; got != want {
			w.Errorf("%s: %q, want %q", file, got, want)
		}
	}
	for name, want := range map[string]string{
		"NODE": w.get("looks").Spec.NodeName, "NAME": "looks", "UID": string(w.get("looks").UID), "LABEL": "looks", "IP": w.get("looks").Status.PodIP,
		"ACCOUNT": "default", "PASSWORD": "s3cret", "GREETING": "hello", "ALL_greeting": "hello", "EXPANDED": "hello, looks $(NAME) $(NONE)",
	} {
		if got := got.Env[name]; got != want {
			w.Errorf("variable %s is %q, want %q", name, got, want)
		}
	}
	if _, is := got.Env["OPTIONAL"]; is {
		w.Errorf("an optional variable of a ConfigMap that is not there is %q", got.Env["OPTIONAL"])
	}
	if mount := mountOf(got.Files["/proc/self/mountinfo"], "/memory"); !strings.Contains(mount, "tmpfs") || !strings.Contains(mount, "size=1024k") {
		w.Errorf("/memory is %q", mount)
	}
	if n := strings.Count(got.Files["/proc/self/mountinfo"], "\n"); n > 60 {
		w.Errorf("the container sees %d mounts:\n%s", n, got.Files["/proc/self/mountinfo"])
	}
	if status := got.Files["/proc/self/status"]; !strings.Contains(status, "CapEff:\t0000000000000000\n") || !strings.Contains(status, "NoNewPrivs:\t1\n") {
		w.Errorf("the container has privileges:\n%s", status)
	}
}

func mountOf(info, target string) string {
	for line := range strings.Lines(info) {
		if f := strings.Fields(line); len(f) > 4 && f[4] == target {
			return line
		}
	}
	return ""
}

// objects makes a ConfigMap and a Secret.
func (w world) objects(name string) {
	w.Helper()
	meta := metav1.ObjectMeta{Name: name, Namespace: namespace}
	_, err := w.plane.Client.CoreV1().ConfigMaps(namespace).Create(w.Context(), &corev1.ConfigMap{
		ObjectMeta: meta, Data: map[string]string{"greeting": "hello", "other": "world"},
	}, metav1.CreateOptions{})
	w.check(err)
	_, err = w.plane.Client.CoreV1().Secrets(namespace).Create(w.Context(), &corev1.Secret{
		ObjectMeta: meta, StringData: map[string]string{"password": "s3cret"},
	}, metav1.CreateOptions{})
	w.check(err)
}

// restricted is a pod with no privileges and every kind of volume and variable.
func (w world) restricted(name string) corev1.PodSpec {
	s := spec("look", ">/new", ">/tmp/new", ">/memory/new", ">/config/new", "/config/greeting", "/config/nested/other", "/one/greeting",
		"/secret/password", "/info/labels", "/etc/hostname", ">/proc/sys/kernel/hostname", "/root", ">"+programPath, "/proc/1/comm", "/proc/2/comm",
		"/proc/self/mountinfo", "/proc/self/status")
	object := corev1.LocalObjectReference{Name: name}
	s.SecurityContext = &corev1.PodSecurityContext{
		RunAsNonRoot: new(true), RunAsUser: new(int64(65532)), RunAsGroup: new(int64(65533)), FSGroup: new(int64(65534)),
		SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
	}
	s.Volumes = []corev1.Volume{
		{Name: "tmp", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{}}},
		{Name: "memory", VolumeSource: corev1.VolumeSource{EmptyDir: &corev1.EmptyDirVolumeSource{Medium: corev1.StorageMediumMemory, SizeLimit: new(resource.MustParse("1Mi"))}}},
		{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
			LocalObjectReference: object, Items: []corev1.KeyToPath{{Key: "greeting", Path: "greeting"}, {Key: "other", Path: "nested/other"}},
		}}},
		{Name: "secret", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: name, DefaultMode: new(int32(0o400))}}},
		{Name: "info", VolumeSource: corev1.VolumeSource{DownwardAPI: &corev1.DownwardAPIVolumeSource{Items: []corev1.DownwardAPIVolumeFile{
			{Path: "labels", FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels"}},
		}}}},
	}
	c := &s.Containers[0]
	c.WorkingDir = "/work"
	c.SecurityContext = &corev1.SecurityContext{
		ReadOnlyRootFilesystem: new(true), AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
	}
	c.VolumeMounts = []corev1.VolumeMount{
		{Name: "tmp", MountPath: "/tmp"},
		{Name: "memory", MountPath: "/memory"},
		{Name: "config", MountPath: "/config", ReadOnly: true},
		{Name: "config", MountPath: "/one/greeting", SubPath: "greeting"},
		{Name: "secret", MountPath: "/secret"},
		{Name: "info", MountPath: "/info"},
	}
	c.Env = []corev1.EnvVar{
		{Name: "PASSWORD", ValueFrom: &corev1.EnvVarSource{SecretKeyRef: &corev1.SecretKeySelector{LocalObjectReference: object, Key: "password"}}},
		{Name: "GREETING", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{LocalObjectReference: object, Key: "greeting"}}},
		{Name: "OPTIONAL", ValueFrom: &corev1.EnvVarSource{ConfigMapKeyRef: &corev1.ConfigMapKeySelector{
			LocalObjectReference: corev1.LocalObjectReference{Name: "none"}, Key: "none", Optional: new(true),
		}}},
	}
	fields := map[string]string{
		"NODE": "spec.nodeName", "NAME": "metadata.name", "UID": "metadata.uid", "LABEL": "metadata.labels['app']", "IP": "status.podIP",
		"ACCOUNT": "spec.serviceAccountName",
	}
	for _, variable := range slices.Sorted(maps.Keys(fields)) {
		c.Env = append(c.Env, corev1.EnvVar{Name: variable, ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: fields[variable]}}})
	}
	c.Env = append(c.Env, corev1.EnvVar{Name: "EXPANDED", Value: "$(GREETING), $(NAME) $$(NAME) $(NONE)"})
	c.EnvFrom = []corev1.EnvFromSource{{Prefix: "ALL_", ConfigMapRef: &corev1.ConfigMapEnvSource{LocalObjectReference: object}}}
	return s
}
