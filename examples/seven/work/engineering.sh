# Writes the program. Asks when the task is unclear, escalates what it may not
# decide, and mends what qa rejects.
. /workspace/lib.sh
letters= decided= version=0
write_it() {
  [ -n "$letters" ] && [ -n "$decided" ] || return 0
  version=$((version + 1))
  {
    echo 'IFS= read -r title || exit 1'
    # The first version forgets that separators come in rows and at the edges.
    if [ "$version" = 1 ]; then squeeze=; else squeeze=-s; fi
    echo "name=\$(printf '%s' \"\$title\" | tr '[:upper:]' '[:lower:]' | tr $squeeze -c '[:alnum:]' '-')"
    [ "$version" = 1 ] || echo 'name=${name#-} name=${name%-}'
    echo 'case $name in *[a-z0-9]*) ;; *) echo "no name in this title" >&2; exit 2 ;; esac'
    echo 'printf "%s\n" "$name"'
  } > /tmp/slug.sh
  tell qa_validation result "{\"program\":\"$(pack /tmp/slug.sh)\",\"rounds\":$version}"
  say "sent version $version to qa_validation"
}
while take; do
  case $from/$type in
    pm/task_assignment)
      tell pm clarification '{"question":"are capital letters kept?"}' --reply-to "$seq"
      tell orchestrator escalation '{"question":"a title without any letter has no name; what then?"}' --priority high
      done_with
      ;;
    pm/answer)
      letters=$(text answer)
      done_with
      write_it
      ;;
    orchestrator/policy_decision)
      decided=$(text decision)
      done_with
      write_it
      ;;
    qa_validation/rejected)
      say "rejected: $(text failed)"
      done_with
      write_it
      ;;
    orchestrator/goodbye) done_with; exit 0 ;;
    *) done_with ;;
  esac
done
