# What an earlier revision said otherwise on purpose: three strategies had other names.
s/^( *)configure-blank( +[a-z0-9]+)/\1install-reset\2/
s/^( *)reconfigure( +[a-z0-9]+)/\1reshape\2/
s/^( *)configure( +[a-z0-9]+)/\1apply-config\2/
s/^( *[0-9]+ )configure:/\1apply-config:/
s/\| configure \|/| apply-config |/
s/"strategy": "configure"/"strategy": "apply-config"/
s/"why": "configure:/"why": "apply-config:/
