# Runs what engineering wrote on every case, and says what failed.
. /workspace/lib.sh
judge() {
  while IFS="$(printf '\t')" read -r title want; do
    have=$(printf '%s\n' "$title" | timeout 5 sh /tmp/slug.sh 2>&1) || true
    [ "$have" = "$want" ] || { echo "$title becomes $have, not $want"; return; }
  done < /tmp/cases
}
while take; do
  case $from/$type in
    pm/task_assignment)
      unpack cases /tmp/cases
      done_with
      ;;
    engineering/result)
      if [ ! -f /tmp/cases ]; then # its own task has not come yet: not now
        msg refuse --delay 500ms --reason "no cases yet" "$lease" > /dev/null
        continue
      fi
      unpack program /tmp/slug.sh
      failed=$(judge)
      if [ -n "$failed" ]; then
        tell engineering rejected "{\"failed\":\"$failed\"}" --reply-to "$seq"
        say "rejected round $(number rounds): $failed"
      else
        tell pm result "{\"program\":\"$(text program)\",\"rounds\":$(number rounds)}"
        announce product approved "{\"rounds\":$(number rounds)}"
        say "approved round $(number rounds)"
      fi
      done_with
      ;;
    orchestrator/goodbye) done_with; exit 0 ;;
    *) done_with ;;
  esac
done
